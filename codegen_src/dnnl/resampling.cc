// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeResampling(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::resampling;
  op.alg = ToDnnl(Kind::kResampling, n.a.alg);
  std::vector<OpDesc> candidates;
  for (const OpArg& src : n.Layouts(DNNL_ARG_SRC, 0)) {
    op.args = {src, n.OutAny()};
    candidates.push_back(op);
  }
  return candidates;
}

const KindRow kResamplingRow = {DescribeResampling, nullptr};

}  // namespace tvm_byoc_dnnl
