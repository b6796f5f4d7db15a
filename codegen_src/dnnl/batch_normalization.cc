// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeBatchNormalization(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::batch_normalization;
  op.epsilon = static_cast<float>(n.a.epsilon);
  op.flags = dnnl_use_global_stats | dnnl_use_scale | dnnl_use_shift;
  op.args = {n.AsIs(DNNL_ARG_SRC, 0),         n.AsDense(DNNL_ARG_SCALE, 1),
             n.AsDense(DNNL_ARG_SHIFT, 2),    n.AsDense(DNNL_ARG_MEAN, 3),
             n.AsDense(DNNL_ARG_VARIANCE, 4), n.OutAny()};
  OpDesc dense = op;
  dense.args[0] = n.AsDense(DNNL_ARG_SRC, 0);
  return {op, dense};
}

const KindRow kBatchNormalizationRow = {DescribeBatchNormalization, nullptr};

}  // namespace tvm_byoc_dnnl
