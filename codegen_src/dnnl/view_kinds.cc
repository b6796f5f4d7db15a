// SPDX-License-Identifier: Apache-2.0
// Kinds that only move elements: views where the layout allows them, else one copy.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "common/graph.h"
#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {

static void LowerPermute(const NodeView& n) {
  Place place = n.lowering.Primary(n.In(0));
  place.md = PermuteView(place.md, n.a.axes);
  n.lowering.SetPlace(n.output, place);
}

const KindRow kPermuteRow = {nullptr, LowerPermute};

static void LowerSlice(const NodeView& n) {
  Lowering& l = n.lowering;
  Place place = l.Primary(n.In(0));
  if (!n.OutShape().empty()) {
    std::optional<View> view = SliceView(place.md, n.a.begin, n.OutShape(), n.a.steps);
    if (!view) {
      place = l.PlaceIn(n.In(0), Dense(n.Shape(0), n.DTypeOf(0)));
      view = SliceView(place.md, n.a.begin, n.OutShape(), n.a.steps);
    }
    place.md = view->md;
    place.offset += view->offset;
  }
  l.SetPlace(n.output, place);
}

const KindRow kSliceRow = {nullptr, LowerSlice};

namespace {

/// A layout of `md`'s tensor of which the reshaped tensor is a view, and in which as little as
/// possible moves: axes that merge or split together stand together, row-major; the groups keep
/// their physical order. Channels that were innermost stay so.
MemoryDesc Reshapable(const MemoryDesc& md, DType dtype, const Dims& to) {
  const Dims from = md.get_dims();
  const Dims strides = md.get_strides();
  struct Group {
    int64_t stride;  // of its innermost axis
    Dims axes;
  };
  std::vector<Group> groups;
  size_t i = 0, o = 0;
  while (i <
         from.size()) {  // the shortest runs of axes with the same number of elements on both sides
    Group group{strides[i], {static_cast<int64_t>(i)}};
    int64_t in = from[i++];
    int64_t out = o < to.size() ? to[o++] : 1;
    while (in != out) {
      if (in < out) {
        if (from[i] != 1) group.stride = std::min(group.stride, strides[i]);
        group.axes.push_back(static_cast<int64_t>(i));
        in *= from[i++];
      } else {
        out *= to[o++];
      }
    }
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.stride > b.stride; });
  Dims order;
  for (const Group& group : groups) order.insert(order.end(), group.axes.begin(), group.axes.end());
  return Ordered(from, dtype, order);
}

}  // namespace

static void LowerReshape(const NodeView& n) {
  Lowering& l = n.lowering;
  const DType dtype = n.OutDType();
  Place place = l.Primary(n.In(0));
  std::optional<MemoryDesc> view = ReshapeView(place.md, n.OutShape());
  if (!view && IsStrided(place.md)) {
    place = l.PlaceIn(n.In(0), Reshapable(place.md, dtype, AtLeastRank1(n.OutShape())));
    view = ReshapeView(place.md, n.OutShape());
  }
  if (!view) {
    place = l.PlaceIn(n.In(0), Dense(n.Shape(0), dtype));
    view = ReshapeView(place.md, n.OutShape());
  }
  place.md = *view;
  l.SetPlace(n.output, place);
}

const KindRow kReshapeRow = {nullptr, LowerReshape};

void ExpandTo(Lowering& l, int from, int to) {
  const Dims& in = l.shape(from);
  const Dims& out = l.shape(to);
  Place place = l.Primary(from);
  if (!IsStrided(place.md)) place = l.PlaceIn(from, Dense(in, l.dtype(from)));
  l.Allocate(to, Dense(out, l.dtype(to)));
  if (out.empty()) {
    l.Copy(from, to, l.Primary(to));
    return;
  }
  // The source repeats along an axis when its stride is 0.
  Dims strides = place.md.get_strides();
  for (size_t i = 0; i < out.size(); ++i) {
    if (in[i] != out[i]) strides[i] = 0;
  }
  place.md = Strided(out, l.dtype(from), strides);
  int repeated = l.NewValue(out, l.dtype(from), l.IsConstant(from));
  l.SetPlace(repeated, place);
  l.Copy(repeated, to, l.Primary(to));
}

int Expanded(Lowering& l, int value, const Dims& shape) {
  int result = l.NewValue(shape, l.dtype(value), l.IsConstant(value));
  ExpandTo(l, value, result);
  return result;
}

static void LowerExpand(const NodeView& n) { ExpandTo(n.lowering, n.In(0), n.output); }

const KindRow kExpandRow = {nullptr, LowerExpand};

static void LowerReorder(const NodeView& n) {
  if (n.DTypeOf(0) == n.OutDType()) {  // both are float32 where oneDNN lacks a dtype (steps.cc)
    n.lowering.SetPlace(n.output, Place(n.lowering.Primary(n.In(0))));
    return;
  }
  n.lowering.Convert(n.In(0), {}, n.output, {}, /*is_grouped=*/false);
}

const KindRow kReorderRow = {nullptr, LowerReorder};

static std::vector<OpDesc> DescribeShuffle(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::shuffle;
  op.axis = n.a.axis;
  op.group_size = n.a.group_size;
  return n.OnEach(op, {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0)});
}

static void LowerShuffle(const NodeView& n) {
  // [.., C / G, G, ..] transposed to [.., G, C / G, ..]: views and one copy.
  Lowering& l = n.lowering;
  const size_t axis = static_cast<size_t>(n.a.axis);
  const Dims& shape = n.Shape(0);
  auto split = [&](int64_t outer, int64_t inner) {
    Dims dims = shape;
    dims[axis] = inner;
    dims.insert(dims.begin() + axis, outer);
    return dims;
  };
  const Dims from_shape = split(shape[axis] / n.a.group_size, n.a.group_size);
  const Dims to_shape = split(n.a.group_size, shape[axis] / n.a.group_size);
  Dims axes(from_shape.size());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  std::swap(axes[axis], axes[axis + 1]);

  Place from = l.Primary(n.In(0));
  if (!IsStrided(from.md)) from = l.PlaceIn(n.In(0), Dense(shape, n.DTypeOf(0)));
  // The result keeps the order of the source's axes.
  Place to = l.Allocate(n.output, Ordered(shape, n.OutDType(), AxisOrder(from.md)));
  std::optional<MemoryDesc> view = ReshapeView(from.md, from_shape);
  if (!view) {  // a source with gaps
    from = l.PlaceIn(n.In(0), Dense(shape, n.DTypeOf(0)));
    view = ReshapeView(from.md, from_shape);
  }
  from.md = PermuteView(*view, axes);
  to.md = ReshapeView(to.md, to_shape).value();
  int transposed = l.NewValue(to_shape, n.OutDType(), l.IsConstant(n.In(0)));
  l.SetPlace(transposed, from);
  l.Copy(transposed, n.output, to);
}

const KindRow kShuffleRow = {DescribeShuffle, LowerShuffle};

static constexpr Kernel kGather = {"gather", "copy", byoc_gather};

static int64_t ModeOf(const std::string& alg) {
  if (alg == "from_end") return BYOC_GATHER_FROM_END;
  if (alg == "clip") return BYOC_GATHER_CLIP;
  return alg == "wrap" ? BYOC_GATHER_WRAP : BYOC_GATHER_CHECKED;
}

static void LowerGather(const NodeView& n) {
  const Dims& shape = n.Shape(0);
  const auto axis = shape.begin() + n.a.axis;
  const int64_t slice = ElementCount(Dims(axis + 1, shape.end())) * SizeOf(n.OutDType());
  const int64_t width = SizeOf(n.DTypeOf(1));
  n.lowering.EmitKernel(
      StepOf(kGather, kGather.name, ModeOf(n.a.alg), ElementCount(Dims(shape.begin(), axis)), *axis,
             slice, ElementCount(n.Shape(1)), width),
      {n.AsDense(DNNL_ARG_SRC, 0),
       {DNNL_ARG_SRC_1, n.In(1), RawLayout(n.Shape(1), n.DTypeOf(1))},
       {DNNL_ARG_DST, n.output, Dense(n.OutShape(), n.OutDType())}});
}

const KindRow kGatherRow = {nullptr, LowerGather};

static constexpr Kernel kLookup = {"lookup", "copy", byoc_lookup};

static void LowerLookup(const NodeView& n) {
  if (!IsByte(n.DTypeOf(0)) || !IsByte(n.OutDType())) {
    Fail(ErrorKind::kUnsupported, "a lookup takes no scales, no zero points and no post-ops");
  }
  std::array<uint8_t, 8 * BYOC_LOOKUP_WORDS> table;
  // A negative int8 becomes its byte.
  std::transform(n.a.table.begin(), n.a.table.end(), table.begin(),
                 [](int64_t result) { return static_cast<uint8_t>(result); });
  OpArg source = n.AsIs(DNNL_ARG_SRC, 0);  // any layout of one byte after the other
  if (!IsStrided(source.md)) source = n.AsDense(DNNL_ARG_SRC, 0);
  const MemoryDesc result = Strided(n.OutShape(), n.OutDType(), source.md.get_strides());
  n.lowering.EmitKernel(StepOf(kLookup, kLookup.name, ElementCount(n.OutShape()), table),
                        {source, {DNNL_ARG_DST, n.output, result}});
}

const KindRow kLookupRow = {nullptr, LowerLookup};

// Results that are one number in whole or in part: padding, and what is computed of no elements.

namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
std::string Saturated(double value) {
  using Limits = std::numeric_limits<T>;
  double rounded = std::isnan(value) ? 0 : std::nearbyint(value);
  return Bytes(static_cast<T>(std::clamp<double>(rounded, Limits::min(), Limits::max())));
}

/// The bytes of one element: rounded as oneDNN rounds it, or saturated.
std::string EncodeElement(double value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Bytes(static_cast<float>(value));
    case DType::kFloat16:
      return Bytes(byoc_to_float16(static_cast<float>(value)));
    case DType::kBFloat16:
      return Bytes(byoc_to_bfloat16(static_cast<float>(value)));
    case DType::kInt32:
      return Saturated<int32_t>(value);
    case DType::kInt8:
      return Saturated<int8_t>(value);
    case DType::kUInt8:
      return Saturated<uint8_t>(value);
    case DType::kBool:
      return Bytes(static_cast<uint8_t>(value != 0));
    case DType::kFloat64:
    case DType::kInt64:
      break;
  }
  Fail(ErrorKind::kUnsupported, "a number as an element of ", Name(dtype));
}

/// What nothing adds up to. A mean has none: ONNX Runtime gives 0, and PyTorch NaN.
std::optional<double> NeutralElement(const NodeView& n) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (n.node.kind == Kind::kMatmul) return 0;
  if (n.node.kind != Kind::kReduction) return std::nullopt;
  if (n.a.alg == "sum") return 0;
  if (n.a.alg == "mul") return 1;
  const DType dtype = n.OutDType();
  const bool has_infinity =
      dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (!has_infinity) return std::nullopt;
  if (n.a.alg == "max") return -kInfinity;
  if (n.a.alg == "min") return kInfinity;
  return std::nullopt;
}

}  // namespace

void LowerEmpty(const NodeView& n) {
  const std::optional<double> value = NeutralElement(n);
  if (!value) {
    Fail(ErrorKind::kUnsupported,
         "a source without elements has no result; give sizes of 1 or more");
  }
  Lowering& l = n.lowering;
  if (n.node.kind == Kind::kMatmul && n.OwnInputs() == 3) return ExpandTo(l, n.In(2), n.output);
  l.Allocate(n.output, Dense(n.OutShape(), n.OutDType()));
  l.Fill(n.output, *value == 0 ? std::string(static_cast<size_t>(SizeOf(n.OutDType())), '\0')
                               : EncodeElement(*value, n.OutDType()));
}

static void LowerPad(const NodeView& n) {
  Lowering& l = n.lowering;
  const MemoryDesc& source = l.Layout(n.In(0));  // whose order of axes the result keeps
  Place whole = l.Allocate(n.output, IsStrided(source) && !n.OutShape().empty()
                                         ? Ordered(n.OutShape(), n.OutDType(), AxisOrder(source))
                                         : Dense(n.OutShape(), n.OutDType()));
  if (n.Shape(0) != n.OutShape()) l.Fill(n.output, EncodeElement(n.a.value, n.OutDType()));
  if (ElementCount(n.Shape(0)) == 0) return;
  Place inside = whole;
  if (!n.OutShape().empty()) {
    Dims steps(n.OutShape().size(), 1);
    View view = *SliceView(whole.md, n.a.pad_begin, n.Shape(0), steps);
    inside.md = view.md;
    inside.offset += view.offset;
  }
  l.Copy(n.In(0), n.output, inside);
}

const KindRow kPadRow = {nullptr, LowerPad};

}  // namespace tvm_byoc_dnnl
