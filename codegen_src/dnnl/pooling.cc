// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribePooling(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::pooling;
  op.alg = ToDnnl(Kind::kPooling, n.a.alg);
  op.strides = n.a.strides;
  op.kernel = n.a.kernel;
  op.dilates = n.a.dilations;
  for (int64_t& dilation : op.dilates) --dilation;  // oneDNN counts the holes
  op.pad_begin = n.a.pad_begin;
  op.pad_end = n.a.pad_end;
  std::vector<OpDesc> candidates;
  for (const OpArg& src : n.Layouts(DNNL_ARG_SRC, 0)) {
    op.args = {src, n.OutAny()};
    candidates.push_back(op);
  }
  return candidates;
}

const KindRow kPoolingRow = {DescribePooling, nullptr};

}  // namespace tvm_byoc_dnnl
