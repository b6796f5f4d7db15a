// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

std::vector<OpDesc> DescribeSoftmax(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::softmax;
  op.alg = ToDnnl(Kind::kSoftmax, n.a.alg);
  op.axis = n.a.axis;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
}

}  // namespace tvm_byoc_dnnl
