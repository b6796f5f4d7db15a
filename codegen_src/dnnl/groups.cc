// SPDX-License-Identifier: Apache-2.0
// Convolutions of images in groups of few channels by our kernel, depthwise ones among them: in the
// layouts that are decided for oneDNN's primitive, with the same bias and post-ops.
#include <algorithm>

#include "dnnl/algorithms.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_groups.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr int64_t kMostChannels = 16;

/// Groups of which a vector holds several, or one that nearly fills it. Of depthwise kernels oneDNN
/// has good ones for all but two widths, unless it unfolds the source.
bool Suits(const byoc_groups_params& p, const Candidate& primitive) {
  if (!byoc_groups_is_depthwise(&p))
    return p.channels <= kMostChannels && p.outputs <= byoc_lanes(p.isa);
  return byoc_groups_wide(&p) > 0 || Unfolds(primitive.impl) ||
         IsReference(primitive.op.kind, primitive.impl);
}

/// Channels-last; or blocks of one vector each, in which no vector of the kernel begins. `at_once`:
/// channels of the groups that are computed at once.
bool IsPlain(const byoc_strides& strides, int64_t channels, int64_t at_once, int64_t lanes) {
  return strides.lanes == channels || (strides.lanes == lanes && at_once % lanes == 0);
}

/// The bytes are left to the lowering.
Work WorkOf(const byoc_groups_params& p) {
  Work work;
  const auto pixels = static_cast<double>(p.images * p.out_height * p.out_width);
  const auto taps = static_cast<double>(byoc_groups_taps(&p));
  if (byoc_groups_is_depthwise(&p)) {
    work.products = pixels * static_cast<double>(p.groups) * taps;
    return work;
  }
  const auto vectors = pixels * static_cast<double>(byoc_groups_vectors(&p)) * taps;
  work.products = vectors * static_cast<double>(byoc_lanes(p.isa));
  const int64_t wide = byoc_groups_wide(&p);
  work.vectors =
      wide == 0 ? vectors : vectors * static_cast<double>(p.stride_x) / static_cast<double>(wide);
  return work;
}

}  // namespace

std::optional<Candidate> OfferGroups(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (op.kind != dnnl::primitive::kind::convolution) return std::nullopt;
  const Dims shape = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  if (shape.size() != 5) return std::nullopt;
  std::optional<KernelFrame> frame = FrameOf(primitive, values, Dense(shape, DType::kFloat32));
  if (!frame) return std::nullopt;

  const Dims in = frame->src.get_dims(), out = frame->dst.get_dims();
  byoc_groups_params p{};
  DescribeImages(op, *frame, &p);
  DescribeWindow(op, &p);
  p.dilation_x = op.dilates[1] + 1;
  p.isa = frame->isa;
  p.groups = shape[0];
  p.outputs = shape[1];
  p.channels = shape[2];
  const int64_t lanes = byoc_lanes(p.isa), together = byoc_groups_together(&p);
  if (!Suits(p, primitive) || !IsPlain(p.src, in[1], together * p.channels, lanes) ||
      !IsPlain(p.dst, out[1], together * p.outputs, lanes))
    return std::nullopt;
  KernelCall call = CallOf(kGroups, p, std::move(*frame), /*scratch_bytes=*/0);
  call.packing = PackingOf(kGroupsPack, p, byoc_groups_packed_bytes(&p));

  const bool is_depthwise = byoc_groups_is_depthwise(&p);
  return Candidate{
      op, {}, KernelImpl(is_depthwise ? "depthwise" : "groups", p.isa), std::move(call), WorkOf(p)};
}

bool ComputeInFloat32(const NodeView& n) {
  Lowering& l = n.lowering;
  const Dims &weights = n.Shape(1), &out = n.OutShape();
  const bool is_low = n.DTypeOf(0) == DType::kBFloat16 && n.DTypeOf(1) == DType::kBFloat16;
  const bool is_fast_anyhow = l.isa().Vectors() != BYOC_AVX512 || l.isa().HasTiles();
  const bool has_operands = n.node.inputs.size() > static_cast<size_t>(n.OwnInputs());
  const auto is_known = [](const PostOp& op) {
    PostOpDesc desc;
    desc.alg = ToDnnl(op.binary ? Kind::kBinary : Kind::kEltwise, op.alg);
    return KernelPostOp(desc).has_value();
  };
  const auto& post_ops = n.node.post_ops;
  if (!std::all_of(post_ops.begin(), post_ops.end(), is_known)) return false;
  if (!is_low || is_fast_anyhow || has_operands || weights.size() != 5 || out.size() != 4 ||
      !l.IsConstant(n.In(1)) || (n.OwnInputs() == 3 && n.DTypeOf(2) != DType::kFloat32))
    return false;
  byoc_groups_params p{};
  p.isa = BYOC_AVX512;
  p.images = out[0];
  p.groups = weights[0];
  p.outputs = weights[1];
  p.channels = weights[2];
  p.out_height = out[2];
  p.out_width = out[3];
  p.kernel_height = weights[3];
  p.kernel_width = weights[4];
  p.stride_x = n.a.strides[1];
  p.dilation_x = n.a.dilations[1];
  constexpr int64_t kBlock = 4;  // oneDNN has code for groups of that many channels, or twice
  const bool in_blocks = p.outputs % kBlock == 0 && p.channels % kBlock == 0;
  if (byoc_groups_is_depthwise(&p) || in_blocks || p.channels > kMostChannels ||
      p.outputs > byoc_lanes(p.isa))
    return false;

  // It pads outputs to a vector and channels to pairs, and adds products at the rate of float32.
  Work padded, converted;
  padded.products = static_cast<double>(out[0] * out[2] * out[3] * p.groups *
                                        byoc_round_up(p.outputs, byoc_lanes(p.isa)) *
                                        byoc_round_up(p.channels, 2) * weights[3] * weights[4]);
  constexpr double kBoth = 4 + 2;  // bytes of a number in both dtypes
  const bool is_converted_back = n.OutDType() == DType::kBFloat16;
  converted.bytes = kBoth * static_cast<double>(ElementCount(n.Shape(0)) +
                                                (is_converted_back ? ElementCount(out) : 0));
  const double in_float32 =
      l.machine().Seconds("groups", WorkOf(p)) + l.machine().Seconds("conversion", converted);
  if (in_float32 >= l.machine().Seconds("convolution_bfloat16", padded)) return false;

  Node convolution = n.node;
  std::vector<Node> nodes;
  for (int i : {0, 1}) {
    convolution.inputs[i] = l.NewValue(n.Shape(i), DType::kFloat32, /*constant=*/i == 1);
    nodes.push_back(NewNode(Kind::kReorder, {n.In(i)}, convolution.inputs[i]));
  }
  if (is_converted_back) convolution.output = l.NewValue(out, DType::kFloat32, /*constant=*/false);
  nodes.push_back(convolution);
  if (is_converted_back) nodes.push_back(NewNode(Kind::kReorder, {convolution.output}, n.output));
  l.LowerInSteps(nodes);
  return true;
}

}  // namespace tvm_byoc_dnnl
