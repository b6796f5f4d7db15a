// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

std::vector<OpDesc> Describe(const NodeView& n, dnnl::primitive::kind kind, dnnl::algorithm alg) {
  OpDesc op;
  op.kind = kind;
  op.alg = alg;
  op.preferred = n.a.alg;
  op.strides = n.a.strides;
  op.dilates = n.a.dilations;
  for (int64_t& dilation : op.dilates) --dilation;  // oneDNN counts the holes
  op.pad_begin = n.a.pad_begin;
  op.pad_end = n.a.pad_end;
  op.args = {n.AsAny(DNNL_ARG_SRC, 0), n.AsAny(DNNL_ARG_WEIGHTS, 1)};
  if (n.OwnInputs() == 3) op.args.push_back(n.AsDense(DNNL_ARG_BIAS, 2));
  op.args.push_back(n.OutAny());
  return {op};
}

}  // namespace

static std::vector<OpDesc> DescribeConvolution(const NodeView& n) {
  return Describe(n, dnnl::primitive::kind::convolution, dnnl::algorithm::convolution_direct);
}

static std::vector<OpDesc> DescribeDeconvolution(const NodeView& n) {
  return Describe(n, dnnl::primitive::kind::deconvolution, dnnl::algorithm::deconvolution_direct);
}

const KindRow kConvolutionRow = {DescribeConvolution, nullptr};

const KindRow kDeconvolutionRow = {DescribeDeconvolution, nullptr};

}  // namespace tvm_byoc_dnnl
