// SPDX-License-Identifier: Apache-2.0
// Products of matrices with constant weights, and convolutions 1x1, by our packed kernel: in the
// layouts that are decided for oneDNN's primitive, with the same bias and post-ops. A convolution
// normalises what it reads if nothing else reads what a batch normalisation made.
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_batch_norm.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

constexpr Kernel kBatchNormProduct = {"batch_norm_product", "batch_norm", byoc_batch_norm_product};
constexpr Kernel kProduct = {"product", "product", byoc_product};
constexpr Kernel kProductPack = {"product_pack", "product", byoc_product_pack, true};

/// A product of matrices, or a convolution that is one of its pixels.
bool Suits(const OpDesc& op) {
  if (op.kind != PrimitiveKind::matmul && op.kind != PrimitiveKind::convolution) return false;
  const Dims weights = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  if (op.kind == PrimitiveKind::matmul) return weights.size() == 2;
  const size_t axes = op.Find(DNNL_ARG_DST)->md.get_dims().size();
  return axes == 4 && weights.size() == 4 && weights[2] == 1 && weights[3] == 1 &&
         AllAre(0, op.pad_begin) && AllAre(0, op.pad_end);
}

/// Whether the pixels of the results lie evenly, one row of numbers after the other.
bool AreRows(const byoc_convolution& c, const byoc_strides& strides) {
  return strides.lanes == c.outputs &&
         (c.out_height == 1 || strides.row == c.out_width * strides.pixel) &&
         (c.images == 1 || strides.image == c.out_height * c.out_width * strides.pixel);
}

/// The normalisation that made the source of a convolution, unless its result overwrites one of the
/// parts that were normalised.
const Normalized* NormalizationBefore(const OpDesc& op, const Lowering& values) {
  const Normalized* normalized = values.NormalizationOf(op.Find(DNNL_ARG_SRC)->value);
  if (normalized == nullptr || op.kind != PrimitiveKind::convolution) return nullptr;
  const bool overwrites =
      std::any_of(normalized->args.begin(), normalized->args.end(),
                  [&](const OpArg& arg) { return values.Overwrites(op, arg.value); });
  return overwrites ? nullptr : normalized;
}

/// The work of a product, in which the thread with the largest share counts for all.
Work WorkOf(const byoc_product_params& p, bool is_normalized) {
  const int64_t panel = byoc_panel(p.isa);
  int64_t most = 0;
  for (int64_t thread = 0; thread < p.threads; ++thread) {
    const byoc_share share =
        byoc_divide(p.rows, byoc_pair_rows(p.isa), p.columns, panel, thread, p.threads);
    most =
        std::max(most, (share.last_row - share.first_row) * (share.last_panel - share.first_panel));
  }
  // Outputs that fill no panel are finished vector by vector.
  const int64_t ends = p.columns % panel == 0 ? 0 : byoc_round_up(p.columns % (2 * panel), panel);
  const int64_t numbers = p.rows * (ends + (is_normalized ? p.depth : 0));
  Work work;
  work.products = static_cast<double>(p.threads * most) * static_cast<double>(panel * p.depth);
  work.vectors = static_cast<double>(numbers / byoc_lanes(p.isa));
  return work;
}

/// The call of a product that normalises its source, whose rows count pixels then.
KernelCall NormalizingCall(const Normalized& normalized, const byoc_convolution& c,
                           byoc_product_params p, KernelFrame frame, KernelCall::Packing packing) {
  p.src_row = c.stride_x;
  p.src_line = c.width * c.stride_y;
  std::vector<OpArg> args = normalized.args;
  args.insert(args.end(), frame.args.begin() + 1, frame.args.end());
  frame.args = std::move(args);
  KernelCall call = CallOf(kBatchNormProduct, p, frame, byoc_batch_norm_product_scratch_bytes(&p),
                           std::move(packing));
  call.params.insert(call.params.end(), normalized.params.begin(), normalized.params.end());
  call.inner = normalized.node;
  return call;
}

}  // namespace

std::vector<Candidate> OfferProduct(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (!Suits(op)) return {};
  std::optional<KernelFrame> frame = FrameOf(primitive, values, Weights::kInAnyOrder);
  if (!frame) return {};

  const byoc_convolution c = frame->of;
  byoc_product_params p{};
  p.isa = c.isa;
  p.threads = c.threads;
  p.rows = c.images * c.out_height * c.out_width;
  p.columns = c.outputs;
  p.depth = c.channels;
  p.src_row = c.src.pixel * c.stride_x;  // of every so many pixels of every so many lines
  p.line_rows = c.out_width;
  p.src_line = c.src.row * c.stride_y;
  p.dst_row = c.dst.pixel;
  p.has_bias = c.has_bias;
  p.post_ops = c.post_ops;
  const bool reads_lines =
      c.src.lanes == c.channels && (c.images == 1 || c.src.image == c.out_height * p.src_line);
  if (!reads_lines || !AreRows(c, c.dst)) return {};
  for (const byoc_post_op& post_op : frame->post_ops) {
    if (post_op.form == BYOC_PER_ELEMENT && !AreRows(c, post_op.strides)) return {};
  }
  const bool of_pixels = op.kind == PrimitiveKind::convolution;
  const bool ends_in_registers = byoc_end_of(frame->post_ops.data(), p.post_ops).fits != 0;
  if (of_pixels && !ends_in_registers) return {};  // measured: slower than oneDNN's own
  const size_t down = of_pixels ? 1 : 0;           // the axis of the depth
  const Dims strides = frame->weights.get_strides();
  const byoc_product_pack_params pack = {p.isa, p.columns, p.depth, strides[down],
                                         strides[1 - down]};
  KernelCall::Packing packing =
      PackingOf(kProductPack, pack, byoc_product_packed_bytes(p.isa, p.columns, p.depth));
  const Normalized* normalized = NormalizationBefore(op, values);
  KernelCall call =
      normalized ? NormalizingCall(*normalized, c, p, std::move(*frame), std::move(packing))
                 : CallOf(kProduct, p, *frame, byoc_product_scratch_bytes(&p), std::move(packing));
  const std::string impl = KernelImpl(call.kernel->name, p.isa);
  return {Candidate{op, {}, impl, std::move(call), WorkOf(p, normalized != nullptr)}};
}

}  // namespace tvm_byoc_dnnl
