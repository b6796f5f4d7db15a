// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static void LowerReorder(const NodeView& n) {
  if (n.DTypeOf(0) == n.OutDType()) {  // both are float32 where oneDNN lacks a dtype (half.cc)
    n.lowering.SetPlace(n.output, Place(n.lowering.Primary(n.In(0))));
    return;
  }
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
  if (!n.lowering.Emit(candidates, /*accept_reference=*/true)) n.lowering.FailUnsupported();
}

const KindRow kReorderRow = {nullptr, LowerReorder};

}  // namespace tvm_byoc_dnnl
