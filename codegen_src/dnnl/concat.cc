// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kAppend = {"append", "copy", byoc_append};

/// A layout of all sources, of which the order of the axes is one.
struct Common {
  Dims order;
  Dims blocks;  // empty: strides alone
};

/// The layout in which most bytes lie already. Inner blocks are taken only if all sources have the
/// same: sources cannot be brought into them. Row-major weighs half, since what follows a concat
/// seldom likes it.
Common CommonLayout(const NodeView& n, const std::vector<int>& sources) {
  const Lowering& l = n.lowering;
  const Dims blocks = l.Layout(sources[0]).get_inner_blks();
  const Dims first_order = AxisOrder(l.Layout(sources[0]));
  bool alike = std::all_of(sources.begin(), sources.end(), [&](int source) {
    const MemoryDesc& md = l.Layout(source);
    return md.get_inner_blks() == blocks && AxisOrder(md) == first_order;
  });
  if (alike) return {first_order, blocks};
  std::map<Dims, int64_t> weights;
  for (int source : sources) {
    const MemoryDesc& md = l.Layout(source);
    if (!IsStrided(md)) continue;
    weights[AxisOrder(md)] += ElementCount(l.shape(source)) * (IsDense(md) ? 1 : 2);
  }
  if (weights.empty()) return {AxisOrder(ChannelsLast(n.OutShape(), n.OutDType())), {}};
  auto best = std::max_element(weights.begin(), weights.end(),
                               [](const auto& x, const auto& y) { return x.second < y.second; });
  return {best->first, {}};
}

/// Writes new rows into a cache: to `place`, a number for each batch or one for all, which says
/// where they begin or (`is_end`) end. The `past` rows are copied, or (-1) there already.
void EmitRows(const NodeView& n, int64_t axis_of_rows, int place, bool is_end, int past) {
  Lowering& l = n.lowering;
  const Dims& rows = n.Shape(1);
  const auto axis = static_cast<size_t>(axis_of_rows);
  const int64_t width = SizeOf(n.OutDType());
  // Of the axes before the rows, all but the first count as heads.
  const size_t split = std::min<size_t>(axis, 1);
  byoc_append_params p{};
  p.batch = ElementCount(Dims(rows.begin(), rows.begin() + split));
  p.heads = ElementCount(Dims(rows.begin() + split, rows.begin() + axis));
  p.rows = rows[axis];
  p.row_bytes = ElementCount(Dims(rows.begin() + axis + 1, rows.end())) * width;
  p.capacity = n.OutShape()[axis];
  p.past_rows = past < 0 ? -1 : l.shape(past)[axis];
  p.places = ElementCount(l.shape(place));
  p.places_end = is_end ? 1 : 0;
  const bool is_narrow = n.DTypeOf(1) != n.OutDType();
  const int source = is_narrow ? l.Narrowed(n.In(1), n.OutDType()) : n.In(1);
  MemoryDesc md = l.Layout(source);
  const bool is_read_as_it_is =
      IsStrided(md) && axis == 2 && rows.size() == 4 && md.get_strides()[3] == 1;
  if (!is_read_as_it_is) md = Dense(rows, n.OutDType());
  if (is_read_as_it_is) {
    const Dims strides = md.get_strides();
    p.batch_stride = strides[0] * width;
    p.head_stride = strides[1] * width;
    p.row_stride = strides[2] * width;
  } else {
    p.row_stride = p.row_bytes;
    p.head_stride = p.rows * p.row_stride;
    p.batch_stride = p.heads * p.head_stride;
  }
  std::vector<OpArg> args = {{DNNL_ARG_SRC, source, md},
                             {DNNL_ARG_SRC_1, place, RawLayout(l.shape(place), DType::kInt64)}};
  if (past >= 0) args.push_back({DNNL_ARG_SRC_2, past, Dense(l.shape(past), n.OutDType())});
  args.push_back({DNNL_ARG_DST, n.output, Dense(n.OutShape(), n.OutDType())});
  l.EmitKernel(StepOf(kAppend, kAppend.name, p), args);
}

/// Copies to the result the sources that were not written there.
void CopyOthers(const NodeView& n) {
  Lowering& l = n.lowering;
  const Place whole = l.Primary(n.output);
  Dims begin(n.OutShape().size(), 0);
  for (int i = 0; i < n.OwnInputs(); ++i) {
    const Dims& shape = n.Shape(i);
    const View part = *SliceView(whole.md, begin, shape, Dims(begin.size(), 1));
    begin[1] += shape[1];
    if (ElementCount(shape) != 0 && l.Primary(n.In(i)).buffer != whole.buffer)
      l.Copy(n.In(i), n.output, {whole.buffer, whole.offset + part.offset, part.md});
  }
}

}  // namespace

static void LowerConcat(const NodeView& n) {
  Lowering& l = n.lowering;
  if (std::optional<int> length = l.GrowingLength())
    return EmitRows(n, n.a.axis, *length, /*is_end=*/true, /*past=*/-1);
  if (l.HasPlace(n.output)) return CopyOthers(n);
  std::vector<int> sources;
  for (int i = 0; i < n.OwnInputs(); ++i) {
    if (ElementCount(n.Shape(i)) != 0) sources.push_back(n.In(i));
  }
  const Common common = CommonLayout(n, sources);
  auto describe = [&](bool dense) {
    OpDesc op;
    op.kind = dnnl::primitive::kind::concat;
    op.axis = n.a.axis;
    for (int source : sources) {
      const MemoryDesc& present = l.Layout(source);
      const Dims& shape = l.shape(source);
      MemoryDesc md = dense                   ? Dense(shape, l.dtype(source))
                      : common.blocks.empty() ? Ordered(shape, l.dtype(source), common.order)
                                              : present;
      op.args.push_back({DNNL_ARG_MULTIPLE_SRC + static_cast<int>(op.args.size()), source, md});
    }
    op.args.push_back(n.OutAny());
    return op;
  };
  EmitOrFail(l, {describe(false), describe(true)});
}

static void LowerAppend(const NodeView& n) {
  EmitRows(n, 2, n.In(2), /*is_end=*/false, n.lowering.GrowingLength() ? -1 : n.In(0));
}

const KindRow kConcatRow = {nullptr, LowerConcat};
const KindRow kAppendRow = {nullptr, LowerAppend};

}  // namespace tvm_byoc_dnnl
