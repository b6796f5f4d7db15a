// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeMatmul(const NodeView& n) {
  const MemoryDesc& src = n.lowering.Layout(n.In(0));
  const MemoryDesc& weights = n.lowering.Layout(n.In(1));
  // Constant weights are packed once, so the primitive chooses; others are read as they lie
  // (transposed, say) if it can.
  bool packed = n.lowering.IsConstant(n.In(1));
  auto describe = [&](OpArg source, OpArg second) {
    OpDesc op;
    op.kind = dnnl::primitive::kind::matmul;
    op.preferred = n.a.alg;
    op.args = {std::move(source), std::move(second)};
    if (n.OwnInputs() == 3) op.args.push_back(n.AsDense(DNNL_ARG_BIAS, 2));
    op.args.push_back(n.OutAny());
    return op;
  };
  OpArg any = n.AsAny(DNNL_ARG_WEIGHTS, 1);
  return {
      describe(n.As(src, DNNL_ARG_SRC, 0), packed ? any : n.As(weights, DNNL_ARG_WEIGHTS, 1)),
      describe(n.AsDense(DNNL_ARG_SRC, 0), packed ? any : n.AsDense(DNNL_ARG_WEIGHTS, 1)),
      describe(n.AsAny(DNNL_ARG_SRC, 0), any),
  };
}

const KindRow kMatmulRow = {DescribeMatmul, nullptr};

}  // namespace tvm_byoc_dnnl
