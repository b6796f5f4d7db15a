// SPDX-License-Identifier: Apache-2.0
// Convolutions with groups or of pictures by our direct kernel: with the bias and post-ops of
// oneDNN's own primitive, and into the layout that it chose, but from the layout that the source
// has. oneDNN is as fast where whole blocks of outputs fill a group, and much slower where a group
// has few channels. Of a picture it writes blocks of channels, which must be reordered then.
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_direct.h"
#include "kernels/byoc_groups.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kDirect = {"direct", "direct", byoc_direct};
constexpr Kernel kDirectPack = {"direct_pack", "direct", byoc_direct_pack, true};

/// Whether a vector of results lies together, wherever a group begins.
bool SuitsVectors(const byoc_convolution& p) {
  const bool channels_last = p.dst.lanes == p.groups * p.outputs;
  return channels_last || (p.dst.lanes == BYOC_DIRECT_LANES && p.outputs % BYOC_DIRECT_LANES == 0);
}

constexpr size_t kRank = 4;  // of an image

/// Convolutions that it computes in time. Wide groups take a little longer than oneDNN's, which
/// pays where a shuffle is spared.
bool IsFast(const Dims& weights, size_t rank, const Machine& machine, bool is_shuffled) {
  const double most = machine.Limit(is_shuffled ? "shuffled_channels" : "wide_channels");
  return IsThin(weights, rank, machine) ||
         (weights.size() == rank + 1 && static_cast<double>(weights[2]) < most &&
          weights[1] * weights[2] > 1);
}

/// Makes few long rows of an image whose pixels lie evenly, where a result reads one pixel alone:
/// the inner loop goes over a row, and on a Zen 3 images of 7x7 to 56x56 take 0.85 to 0.93 of the
/// time. Longer rows gain no more.
void MakeLongRows(byoc_convolution* p, int64_t longest, std::vector<byoc_post_op>* post_ops) {
  std::vector<byoc_strides*> places = {&p->src, &p->dst};
  for (byoc_post_op& post_op : *post_ops) {
    if (post_op.form == BYOC_PER_ELEMENT) places.push_back(&post_op.strides);
  }
  const bool evenly = std::all_of(places.begin(), places.end(), [&](const byoc_strides* s) {
    return s->row == p->width * s->pixel;
  });
  const bool alone = byoc_taps(p) == p->channels && p->stride_x == 1 && p->stride_y == 1 &&
                     p->width == p->out_width && p->height == p->out_height && p->pad_top == 0 &&
                     p->pad_left == 0;
  if (!evenly || !alone) return;
  const int64_t pixels = p->height * p->width, rows = p->images * p->groups;
  int64_t width = longest;
  while (width > p->width && (pixels % width != 0 || pixels / width * rows % p->threads != 0)) {
    --width;
  }
  if (width <= p->width) return;
  for (byoc_strides* s : places) s->row = width * s->pixel;
  p->height = p->out_height = pixels / width;
  p->width = p->out_width = width;
}

/// Has an operation read what its source was shuffled from, unless its result overwrites that.
std::optional<Shuffled> Unshuffle(OpDesc* op, const Lowering& values) {
  OpArg& src = *op->Find(DNNL_ARG_SRC);
  const std::optional<Shuffled> shuffled = values.ShuffleOf(src.value);
  if (!shuffled) return std::nullopt;
  if (values.Overwrites(*op, shuffled->source)) return std::nullopt;
  src.value = shuffled->source;
  return shuffled;
}

}  // namespace

bool IsThin(const Dims& weights, size_t rank, const Machine& machine) {
  if (weights.size() == rank)
    return machine.isa.Vectors() == BYOC_AVX2 && rank == kRank &&
           static_cast<double>(weights[1]) <= machine.Limit("picture_channels");
  if (weights.size() != rank + 1 || weights[1] * weights[2] == 1) return false;
  const auto [few, more] = std::minmax(weights[1], weights[2]);
  const auto least = static_cast<int64_t>(machine.Limit("thin_channels"));
  const bool in_blocks = few % least == 0 && more % least == 0;
  return few < least || (more <= 2 * least && !in_blocks);
}

std::vector<Candidate> OfferDirect(const Candidate& given, const Lowering& values) {
  Candidate primitive = given;
  OpDesc& op = primitive.op;
  if (op.kind != dnnl::primitive::kind::convolution || values.isa().Vectors() != BYOC_AVX2)
    return {};
  const Dims shape = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  const size_t rank = op.Find(DNNL_ARG_DST)->md.get_dims().size();
  const std::optional<Shuffled> shuffled = Unshuffle(&op, values);
  if (rank != kRank || !IsFast(shape, rank, values.machine(), shuffled.has_value())) return {};
  std::optional<KernelFrame> frame = FrameOf(primitive, values, Reads::kPresentPlanes);
  if (!frame) return {};

  byoc_direct_params p{frame->of, shuffled ? shuffled->group_size : 1};
  const bool is_picture = shape.size() == rank;
  if (!SuitsVectors(p.of)) return {};
  if (is_picture && p.of.dst.lanes != p.of.outputs) return {};  // oneDNN is as fast
  MakeLongRows(&p.of, static_cast<int64_t>(values.machine().Limit("long_row")), &frame->post_ops);
  p.of.threads = values.machine().ThreadsFor(byoc_products_of(&p.of), "wake_direct");
  KernelCall call = CallOf(kDirect, kDirectPack, p, *frame, byoc_direct_scratch_bytes(&p),
                           byoc_direct_packed_bytes(&p));
  const auto pixels = static_cast<double>(p.of.images * p.of.out_height * p.of.out_width);
  const auto outputs = static_cast<double>(p.of.groups * byoc_direct_filled(&p.of));
  Work work;
  work.products = pixels * outputs * static_cast<double>(byoc_taps(&p.of));
  work.vectors = pixels * outputs / BYOC_DIRECT_LANES;
  return {Candidate{op, {}, KernelImpl("direct", BYOC_AVX2), std::move(call), work}};
}

// Convolutions of images in groups of few channels, depthwise ones among them: in the layouts that
// are decided for oneDNN's primitive, with the same bias and post-ops.

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

  byoc_convolution& p = frame->of;
  const int64_t lanes = byoc_lanes(p.isa), together = byoc_groups_together(&p);
  if (!Suits(p, primitive, values.machine()) ||
      !IsPlain(p.src, p.groups * p.channels, together * p.channels, lanes) ||
      !IsPlain(p.dst, p.groups * p.outputs, together * p.outputs, lanes))
    return {};
  p.threads = values.machine().ThreadsFor(byoc_products_of(&p), "wake_groups");
  KernelCall call =
      CallOf(kGroups, kGroupsPack, p, *frame, /*scratch_bytes=*/0, byoc_groups_packed_bytes(&p));
  const char* name = byoc_groups_is_depthwise(&p) ? "depthwise" : "groups";
  return {Candidate{op, {}, KernelImpl(name, p.isa), std::move(call), WorkOf(p)}};
}

}  // namespace tvm_byoc_dnnl
