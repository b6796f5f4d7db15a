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
  n.SetWindow(&op);
  op.args = {n.AsAny(DNNL_ARG_SRC, 0), n.AsAny(DNNL_ARG_WEIGHTS, 1)};
  if (n.OwnInputs() == 3) op.args.push_back(n.AsDense(DNNL_ARG_BIAS, 2));
  op.args.push_back(n.OutAny());
  return {op};
}

}  // namespace

/// Where a group has few channels, oneDNN answers the question for any layout with a product of an
/// unfolded source. For AVX-512 it also has a direct convolution, but only if it is asked for
/// channels last; for AVX2 there is a kernel of ours, which writes channels last. So it does from
/// pictures, for which oneDNN writes blocks of channels that what follows seldom reads.
static std::vector<OpDesc> DescribeConvolution(const NodeView& n) {
  std::vector<OpDesc> ops =
      Describe(n, dnnl::primitive::kind::convolution, dnnl::algorithm::convolution_direct);
  const Dims& weights = n.Shape(1);
  const std::optional<byoc_isa> isa = n.lowering.isa().Vectors();
  const bool is_thin = IsThin(weights, n.OutShape().size(), n.lowering.machine());
  if (is_thin && n.DTypeOf(0) == DType::kFloat32 && isa) {
    OpDesc channels_last = ops.front();
    if (*isa == BYOC_AVX512)
      channels_last.args.front() = n.As(ChannelsLast(n.Shape(0), n.DTypeOf(0)), DNNL_ARG_SRC, 0);
    channels_last.args.back().md = ChannelsLast(n.OutShape(), n.OutDType());
    ops.push_back(std::move(channels_last));
  }
  return ops;
}

/// A depthwise convolution of shuffled channels: the source is convolved as it is, by weights in
/// the order before the shuffle, and the result is shuffled. The kernel for groups reads what is
/// shuffled as fast as what is not (direct.cc).
static bool ShuffleBehind(const NodeView& n) {
  Lowering& l = n.lowering;
  const std::optional<Shuffled> shuffled = l.ShuffleOf(n.In(0));
  const Dims& weights = n.Shape(1);
  const bool is_depthwise =
      weights.size() == n.OutShape().size() + 1 && weights[1] * weights[2] == 1;
  if (!shuffled || !l.IsReadOnce(n.In(0)) || !is_depthwise || n.OutDType() != DType::kFloat32)
    return false;
  const bool has_operands = n.node.inputs.size() > static_cast<size_t>(n.OwnInputs());
  if (has_operands || n.DTypeOf(0) != DType::kFloat32) return false;
  Node convolution = n.node;
  convolution.inputs[0] = shuffled->source;
  std::vector<Node> nodes;
  for (int i = 1; i < n.OwnInputs(); ++i) {
    if (!l.IsConstant(n.In(i)) || n.DTypeOf(i) != DType::kFloat32) return false;
    const int before = l.NewValue(n.Shape(i), n.DTypeOf(i), /*constant=*/true);
    nodes.push_back(NewNode(Kind::kShuffle, {n.In(i)}, before));
    nodes.back().attrs.group_size = n.Shape(i)[0] / shuffled->group_size;  // the inverse
    convolution.inputs[i] = before;
  }
  convolution.output = l.NewValue(n.OutShape(), n.OutDType(), /*constant=*/false);
  nodes.push_back(NewNode(Kind::kShuffle, {convolution.output}, n.output));
  nodes.back().attrs.axis = 1;
  nodes.back().attrs.group_size = shuffled->group_size;
  nodes.insert(nodes.end() - 1, std::move(convolution));
  l.LowerInSteps(nodes);
  return true;
}

static std::vector<OpDesc> DescribeDeconvolution(const NodeView& n) {
  return Describe(n, dnnl::primitive::kind::deconvolution, dnnl::algorithm::deconvolution_direct);
}

const KindRow kConvolutionRow = {DescribeConvolution, nullptr, nullptr, ShuffleBehind};

const KindRow kDeconvolutionRow = {DescribeDeconvolution, nullptr};

}  // namespace tvm_byoc_dnnl
