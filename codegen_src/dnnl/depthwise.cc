// SPDX-License-Identifier: Apache-2.0
// Depthwise convolutions of images by our kernel: in the layouts that are decided for oneDNN's
// primitive, with the same bias and post-ops.
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_depthwise_plan.h"

namespace tvm_byoc_dnnl {
namespace {

/// One channel and one output in each group, of a kernel that there is code for.
bool Suits(const OpDesc& op, const Dims& weights) {
  return weights.size() == 5 && weights[1] == 1 && weights[2] == 1 &&
         byoc_depthwise_has(weights[4], op.strides[1]) && op.dilates[1] == 0;
}

/// Channels-last, or blocks of one vector each.
bool IsPlain(const byoc_strides& strides, const byoc_depthwise_params& p) {
  return strides.lanes == p.channels || strides.lanes == byoc_lanes(p.isa);
}

}  // namespace

std::optional<Candidate> OfferDepthwise(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (op.kind != dnnl::primitive::kind::convolution) return std::nullopt;
  const Dims shape = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  if (!Suits(op, shape)) return std::nullopt;
  std::optional<KernelFrame> frame = FrameOf(primitive, values, Dense(shape, DType::kFloat32));
  if (!frame) return std::nullopt;

  const Dims in = frame->src.get_dims(), out = frame->dst.get_dims();
  byoc_depthwise_params p{};
  DescribeImages(op, *frame, &p);
  DescribeWindow(op, &p);
  p.isa = frame->isa;
  p.channels = in[1];
  if (!IsPlain(p.src, p) || !IsPlain(p.dst, p)) return std::nullopt;
  KernelCall call = CallOf(kDepthwise, p, std::move(*frame), /*scratch_bytes=*/0);
  call.packing = PackingOf(kDepthwisePack, p, byoc_depthwise_packed_bytes(&p));

  Candidate candidate{op, {}, KernelImpl("depthwise", p.isa), std::move(call), {}};
  candidate.work.products =
      static_cast<double>(ElementCount(out)) * static_cast<double>(byoc_depthwise_taps(&p));
  return candidate;
}

}  // namespace tvm_byoc_dnnl
