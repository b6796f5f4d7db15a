// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

/// A mean or maximum over all spatial axes is one pooling window, which runs on every layout of
/// activations. It adds all pixels to one sum, which loses bits where they are many.
bool IsGlobalPooling(const NodeView& n) {
  constexpr int64_t kManyPixels = 1 << 14;
  const Dims& in = n.Shape(0);
  const Dims& out = n.OutShape();
  return in.size() >= 3 && in.size() <= 5 && in[0] == out[0] && in[1] == out[1] &&
         std::all_of(out.begin() + 2, out.end(), [](int64_t dim) { return dim == 1; }) &&
         (n.a.alg == "max" ||
          (n.a.alg == "mean" && ElementCount(in) <= kManyPixels * ElementCount(out)));
}

OpDesc GlobalPooling(const NodeView& n) {
  const Dims& in = n.Shape(0);
  OpDesc op;
  op.kind = dnnl::primitive::kind::pooling;
  op.alg = n.a.alg == "max" ? dnnl::algorithm::pooling_max
                            : dnnl::algorithm::pooling_avg_include_padding;
  op.kernel.assign(in.begin() + 2, in.end());
  op.strides.assign(in.size() - 2, 1);
  op.dilates = op.pad_begin = op.pad_end = Dims(in.size() - 2, 0);
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  return op;
}

/// An open axis of one element: there is nothing to reduce, which oneDNN refuses.
bool IsIdentity(const NodeView& n) {
  static constexpr const char* kOfOneElement[] = {"sum", "mean", "max", "min", "mul"};
  return n.Shape(0) == n.OutShape() && n.DTypeOf(0) == n.OutDType() &&
         std::find(std::begin(kOfOneElement), std::end(kOfOneElement), n.a.alg) !=
             std::end(kOfOneElement);
}

OpDesc Reduction(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::reduction;
  op.alg = ToDnnl(Kind::kReduction, n.a.alg);
  op.p = static_cast<float>(n.a.p);
  op.epsilon = static_cast<float>(n.a.epsilon);
  return op;
}

/// `source` with its axes in the order in which they lie in memory; it is one reader's.
int InOrderOfMemory(Lowering& l, int source) {
  Place place = l.Primary(source);
  place.md = PermuteView(place.md, AxisOrder(place.md));
  const int result = l.NewValue(place.md.get_dims(), l.dtype(source), l.IsConstant(source));
  l.SetPlace(result, place);
  return result;
}

}  // namespace

/// A reduction of all elements reads them as they lie.
static bool ReduceAll(const NodeView& n) {
  const MemoryDesc& md = n.lowering.Layout(n.In(0));
  if (ElementCount(n.OutShape()) != 1 || !IsStrided(md) || !IsCompact(md) || IsDense(md)) {
    return false;
  }
  Node node = n.node;
  node.inputs[0] = InOrderOfMemory(n.lowering, n.In(0));
  n.lowering.LowerInSteps({node});
  return true;
}

static std::vector<OpDesc> DescribeReduction(const NodeView& n) {
  std::vector<OpDesc> candidates =
      n.OnEach(Reduction(n), {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0)});
  if (IsGlobalPooling(n)) candidates.insert(candidates.begin(), GlobalPooling(n));
  return candidates;
}

static void LowerReduction(const NodeView& n) {
  if (IsIdentity(n)) return n.lowering.SetPlace(n.output, Place(n.lowering.Primary(n.In(0))));
  // Kept axes first, reduced axes last: [kept, reduced] -> [kept, 1] has an implementation.
  Lowering& l = n.lowering;
  const Dims& in = n.Shape(0);
  const Dims& out = n.OutShape();
  Dims axes, kept, reduced;
  for (bool is_reduced : {false, true}) {
    for (size_t i = 0; i < in.size(); ++i) {
      if ((out[i] != in[i]) != is_reduced) continue;
      axes.push_back(static_cast<int64_t>(i));
      (is_reduced ? reduced : kept).push_back(in[i]);
    }
  }
  Dims permuted = kept;
  permuted.insert(permuted.end(), reduced.begin(), reduced.end());
  int source = l.NewValue(permuted, n.DTypeOf(0), l.IsConstant(n.In(0)));
  Place place = l.Primary(n.In(0));
  place.md = PermuteView(place.md, axes);
  l.SetPlace(source, place);
  source = l.Reshaped(source, {ElementCount(kept), ElementCount(reduced)});
  const Dims flat = {ElementCount(kept), 1};
  int result = l.NewOutput(n.output, flat);
  OpDesc op = Reduction(n);
  op.args = {{DNNL_ARG_SRC, source, l.Layout(source)},
             {DNNL_ARG_DST, result, Dense(flat, n.OutDType())}};
  EmitOrFail(l, {op});
  place = l.Primary(result);  // the kept axes are in order, the others are 1
  place.md = Dense(out, n.OutDType());
  l.SetPlace(n.output, place);
}

const KindRow kReductionRow = {DescribeReduction, LowerReduction, nullptr, ReduceAll};

}  // namespace tvm_byoc_dnnl
