// SPDX-License-Identifier: Apache-2.0
#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribePRelu(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::prelu;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.AsAny(DNNL_ARG_WEIGHTS, 1), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
}

static void LowerPRelu(const NodeView& n) {
  // oneDNN has an implementation for weights per channel. One slope for all, or any other
  // broadcast, is expanded to that.
  Lowering& l = n.lowering;
  const Dims& shape = n.Shape(0);
  Dims weights(shape.size(), 1);
  if (shape.size() >= 2 && ElementCount(n.Shape(1)) == 1) {
    weights[1] = shape[1];
  } else {
    weights = shape;
  }
  int expanded = Expanded(&l, n.In(1), weights);
  OpDesc op;
  op.kind = dnnl::primitive::kind::prelu;
  op.args = {n.AsDense(DNNL_ARG_SRC, 0),
             {DNNL_ARG_WEIGHTS, expanded, AnyLayout(weights, l.dtype(expanded))},
             n.OutAny()};
  if (!l.Emit({op}, /*accept_reference=*/true)) {
    n.lowering.FailUnsupported();
  }
}

const KindRow kPReluRow = {DescribePRelu, LowerPRelu};

}  // namespace tvm_byoc_dnnl
