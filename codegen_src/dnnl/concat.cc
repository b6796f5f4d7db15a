// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

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

}  // namespace

static void LowerConcat(const NodeView& n) {
  Lowering& l = n.lowering;
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
  if (!l.Emit({describe(false), describe(true)}, /*accept_reference=*/true)) {
    n.lowering.FailUnsupported();
  }
}

const KindRow kConcatRow = {nullptr, LowerConcat};

}  // namespace tvm_byoc_dnnl
