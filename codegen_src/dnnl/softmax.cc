// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeSoftmax(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::softmax;
  op.alg = ToDnnl(Kind::kSoftmax, n.a.alg);
  op.axis = n.a.axis;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  std::vector<OpDesc> candidates = {op};
  op.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  candidates.push_back(op);
  Dims order;  // the axis innermost
  for (int64_t axis = 0; axis < static_cast<int64_t>(n.Shape(0).size()); ++axis) {
    if (axis != n.a.axis) order.push_back(axis);
  }
  order.push_back(n.a.axis);
  op.args[0] = n.As(Ordered(n.Shape(0), n.DTypeOf(0), order), DNNL_ARG_SRC, 0);
  candidates.push_back(op);
  return candidates;
}

const KindRow kSoftmaxRow = {DescribeSoftmax, nullptr};

}  // namespace tvm_byoc_dnnl
