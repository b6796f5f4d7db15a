// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <utility>

#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeShuffle(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::shuffle;
  op.axis = n.a.axis;
  op.group_size = n.a.group_size;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
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

}  // namespace tvm_byoc_dnnl
