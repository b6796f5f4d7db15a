// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

std::vector<OpDesc> DescribePRelu(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::prelu;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.AsAny(DNNL_ARG_WEIGHTS, 1), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
}

}  // namespace tvm_byoc_dnnl
