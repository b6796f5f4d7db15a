// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeReorder(const NodeView& n) {
  const MemoryDesc& src = n.lowering.Layout(n.In(0));
  OpDesc op;
  op.kind = dnnl::primitive::kind::reorder;
  auto to = [&](MemoryDesc dst) {
    op.args = {n.As(src, DNNL_ARG_FROM, 0), {DNNL_ARG_TO, n.output, std::move(dst)}};
    return op;
  };
  std::vector<OpDesc> candidates;
  if (IsStrided(src) && IsCompact(src)) {  // keep the order of the axes, change the dtype
    candidates.push_back(to(Strided(src.get_dims(), n.OutDType(), src.get_strides())));
  }
  candidates.push_back(to(Dense(n.OutShape(), n.OutDType())));
  return candidates;
}

const KindRow kReorderRow = {DescribeReorder, nullptr};

}  // namespace tvm_byoc_dnnl
