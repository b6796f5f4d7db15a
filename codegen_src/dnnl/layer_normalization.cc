// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeLayerNormalization(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::layer_normalization;
  op.epsilon = static_cast<float>(n.a.epsilon);
  op.args = {n.AsDense(DNNL_ARG_SRC, 0)};
  if (n.OwnInputs() > 1) {
    op.flags |= dnnl_use_scale;
    op.args.push_back(n.AsDense(DNNL_ARG_SCALE, 1));
  }
  if (n.OwnInputs() > 2) {
    op.flags |= dnnl_use_shift;
    op.args.push_back(n.AsDense(DNNL_ARG_SHIFT, 2));
  }
  op.args.push_back(n.OutAny());
  return {op};
}

const KindRow kLayerNormalizationRow = {DescribeLayerNormalization, nullptr};

}  // namespace tvm_byoc_dnnl
