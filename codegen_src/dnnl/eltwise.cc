// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeEltwise(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::eltwise;
  op.alg = ToDnnl(Kind::kEltwise, n.a.alg);
  op.alpha = static_cast<float>(n.a.alpha);
  op.beta = static_cast<float>(n.a.beta);
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
}

const KindRow kEltwiseRow = {DescribeEltwise, nullptr};

}  // namespace tvm_byoc_dnnl
