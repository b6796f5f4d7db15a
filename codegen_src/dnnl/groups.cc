// SPDX-License-Identifier: Apache-2.0
// Convolutions of images in groups of few channels by our kernel, depthwise ones among them: in the
// layouts that are decided for oneDNN's primitive, with the same bias and post-ops.
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_groups.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kGroups = {"groups", "groups", byoc_groups};
constexpr Kernel kGroupsPack = {"groups_pack", "groups", byoc_groups_pack, true};

/// Groups of which a vector holds several, or one that nearly fills it. Of depthwise kernels oneDNN
/// has good ones for all but two widths, unless it unfolds the source.
bool Suits(const byoc_convolution& p, const Candidate& primitive, const Machine& machine) {
  if (!byoc_groups_is_depthwise(&p))
    return static_cast<double>(p.channels) <= machine.Limit("groups_channels") &&
           p.outputs <= byoc_lanes(p.isa);
  return byoc_groups_wide(&p) > 0 || Unfolds(primitive.impl) ||
         IsReference(primitive.op.kind, primitive.impl);
}

/// Channels-last; or blocks of one vector each, in which no vector of the kernel begins. `at_once`:
/// channels of the groups that are computed at once.
bool IsPlain(const byoc_strides& strides, int64_t channels, int64_t at_once, int64_t lanes) {
  return strides.lanes == channels || (strides.lanes == lanes && at_once % lanes == 0);
}

/// The bytes are left to the lowering.
Work WorkOf(const byoc_convolution& p) {
  Work work;
  const auto pixels = static_cast<double>(p.images * p.out_height * p.out_width);
  const auto taps = static_cast<double>(byoc_taps(&p));
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

std::vector<Candidate> OfferGroups(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (op.kind != dnnl::primitive::kind::convolution ||
      op.Find(DNNL_ARG_WEIGHTS)->md.get_ndims() != 5)
    return {};
  std::optional<KernelFrame> frame = FrameOf(primitive, values);
  if (!frame) return {};

  const byoc_convolution& p = frame->of;
  const int64_t lanes = byoc_lanes(p.isa), together = byoc_groups_together(&p);
  if (!Suits(p, primitive, values.machine()) ||
      !IsPlain(p.src, p.groups * p.channels, together * p.channels, lanes) ||
      !IsPlain(p.dst, p.groups * p.outputs, together * p.outputs, lanes))
    return {};
  KernelCall call = CallOf(kGroups, p, *frame, /*scratch_bytes=*/0,
                           PackingOf(kGroupsPack, p, byoc_groups_packed_bytes(&p)));
  const char* name = byoc_groups_is_depthwise(&p) ? "depthwise" : "groups";
  return {Candidate{op, {}, KernelImpl(name, p.isa), std::move(call), WorkOf(p)}};
}

}  // namespace tvm_byoc_dnnl
