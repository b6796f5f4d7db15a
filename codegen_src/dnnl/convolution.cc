// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kernel_call.h"
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

/// Where a group has few channels, oneDNN answers the question for any layout with a product of an
/// unfolded source. For AVX-512 it also has a direct convolution, but only if it is asked for
/// channels last; for AVX2 there is a kernel of ours, which writes channels last.
static std::vector<OpDesc> DescribeConvolution(const NodeView& n) {
  std::vector<OpDesc> ops =
      Describe(n, dnnl::primitive::kind::convolution, dnnl::algorithm::convolution_direct);
  const Dims& weights = n.Shape(1);
  const std::optional<byoc_isa> isa = KernelIsa();
  const bool is_thin = HasThinGroups(weights, n.OutShape().size());
  if (is_thin && n.DTypeOf(0) == DType::kFloat32 && isa) {
    OpDesc channels_last = ops.front();
    if (*isa == BYOC_AVX512)
      channels_last.args.front() = n.As(ChannelsLast(n.Shape(0), n.DTypeOf(0)), DNNL_ARG_SRC, 0);
    channels_last.args.back().md = ChannelsLast(n.OutShape(), n.OutDType());
    ops.push_back(std::move(channels_last));
  }
  return ops;
}

static std::vector<OpDesc> DescribeDeconvolution(const NodeView& n) {
  return Describe(n, dnnl::primitive::kind::deconvolution, dnnl::algorithm::deconvolution_direct);
}

const KindRow kConvolutionRow = {DescribeConvolution, nullptr};

const KindRow kDeconvolutionRow = {DescribeDeconvolution, nullptr};

}  // namespace tvm_byoc_dnnl
