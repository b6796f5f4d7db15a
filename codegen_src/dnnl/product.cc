// SPDX-License-Identifier: Apache-2.0
// Products of matrices with constant weights, and convolutions 1x1, by our packed kernel: in the
// layouts that are decided for oneDNN's primitive, with the same bias and post-ops. A convolution
// normalises what it reads if nothing else reads what a batch normalisation made.
#include <algorithm>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_batch_norm.h"
#include "kernels/byoc_compressed_matmul.h"
#include "kernels/byoc_split_plan.h"
#if BYOC_HAS_AMX
#include "kernels/byoc_split.h"
#include "kernels/byoc_split_parts.h"
#endif

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
Work WorkOf(const byoc_convolution& p, bool is_normalized) {
  const int64_t panel = byoc_panel(p.isa), all = byoc_product_rows(&p);
  int64_t most = 0;
  for (int64_t thread = 0; thread < p.threads; ++thread) {
    const byoc_share share =
        byoc_divide(all, byoc_pair_rows(p.isa), p.outputs, panel, thread, p.threads);
    most =
        std::max(most, (share.last_row - share.first_row) * (share.last_panel - share.first_panel));
  }
  // Outputs that fill no panel are finished vector by vector.
  const int64_t ends = p.outputs % panel == 0 ? 0 : byoc_round_up(p.outputs % (2 * panel), panel);
  const int64_t numbers = all * (ends + (is_normalized ? p.channels : 0));
  Work work;
  work.products = static_cast<double>(p.threads * most) * static_cast<double>(panel * p.channels);
  work.vectors = static_cast<double>(numbers / byoc_lanes(p.isa));
  return work;
}

/// The call of a product that normalises its source, whose rows count pixels then.
KernelCall NormalizingCall(const Normalized& normalized, byoc_convolution p, KernelFrame frame) {
  p.src.pixel = 1;
  p.src.row = p.width;
  std::vector<OpArg> args = normalized.args;
  args.insert(args.end(), frame.args.begin() + 1, frame.args.end());
  frame.args = std::move(args);
  KernelCall call =
      CallOf(kBatchNormProduct, kProductPack, p, frame, byoc_batch_norm_product_scratch_bytes(&p),
             byoc_product_packed_bytes(&p));
  call.params.insert(call.params.end(), normalized.params.begin(), normalized.params.end());
  call.inner = normalized.node;
  return call;
}

}  // namespace

std::vector<Candidate> OfferProduct(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (!Suits(op)) return {};
  std::optional<KernelFrame> frame = FrameOf(primitive, values);
  if (!frame) return {};

  byoc_convolution p = frame->of;
  const bool reads_lines = p.src.lanes == p.channels &&
                           (p.images == 1 || p.src.image == p.out_height * p.stride_y * p.src.row);
  if (!reads_lines || !AreRows(p, p.dst)) return {};
  for (const byoc_post_op& post_op : frame->post_ops) {
    if (post_op.form == BYOC_PER_ELEMENT && !AreRows(p, post_op.strides)) return {};
  }
  const bool of_pixels = op.kind == PrimitiveKind::convolution;
  const bool ends_in_registers = byoc_end_of(frame->post_ops.data(), p.post_ops).fits != 0;
  if (of_pixels && !ends_in_registers) return {};  // measured: slower than oneDNN's own
  const Normalized* normalized = NormalizationBefore(op, values);
  const Work work = WorkOf(p, normalized != nullptr);
  p.threads = values.machine().ThreadsFor(byoc_products_of(&p), "wake_product");
  KernelCall call = normalized
                        ? NormalizingCall(*normalized, p, std::move(*frame))
                        : CallOf(kProduct, kProductPack, p, *frame, byoc_product_scratch_bytes(&p),
                                 byoc_product_packed_bytes(&p));
  const std::string impl = KernelImpl(call.kernel->name, p.isa);
  return {Candidate{op, {}, impl, std::move(call), work}};
}

// Convolutions and products of matrices with constant weights in float32 on AMX, by several
// products of bfloat16: in the layouts that are decided for oneDNN's primitive, with the same bias
// and post-ops.

namespace {

constexpr Kernel kSplit = {"split", "split", BYOC_IF_AMX(byoc_split)};
constexpr Kernel kSplitPack = {"split_pack", "split_parts", BYOC_IF_AMX(byoc_split_pack)};

/// A product of images in one group, or of matrices, which nobody wants in float32 alone.
bool SuitsParts(const OpDesc& op) {
  if (op.kind != PrimitiveKind::convolution && op.kind != PrimitiveKind::matmul) return false;
  for (const char* in_float32 : {"direct", "float32", "winograd_2x2"}) {
    if (op.preferred == in_float32) return false;
  }
  const size_t axes = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims().size();
  return axes == (op.kind == PrimitiveKind::convolution ? 4 : 2);
}

Work WorkOf(const byoc_split_params& p) {
  const int64_t of_image = byoc_round_up(p.of.out_height * byoc_split_across(&p), BYOC_TILE_ROWS);
  const auto rows = static_cast<double>(p.of.images * of_image);
  Work work;
  const double of_parts = p.parts == 3 ? 6 : 3;
  work.products = of_parts * rows * static_cast<double>(byoc_split_chunks(&p) * BYOC_TILE_DEPTH) *
                  static_cast<double>(byoc_round_up(p.of.outputs, BYOC_TILE_ROWS));
  const int64_t read = p.of.height * p.of.width * p.of.channels;
  const int64_t written = p.of.out_height * p.of.out_width * p.of.outputs;
  // Planes are read number by number.
  const int64_t at_once = p.of.src.pixel == 1 && p.of.channels > 1 ? 1 : BYOC_AVX512_LANES;
  work.vectors =
      static_cast<double>(p.of.images) * (static_cast<double>(read) / static_cast<double>(at_once) +
                                          static_cast<double>(written) / BYOC_AVX512_LANES);
  return work;
}

}  // namespace

std::vector<Candidate> OfferSplit(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (!SuitsParts(op) || !values.isa().HasTiles()) return {};
  const std::optional<KernelFrame> frame = FrameOf(primitive, values, Reads::kPlanes);
  if (!frame) return {};

  byoc_split_params p{};
  p.of = frame->of;
  p.parts = op.preferred == "bf16x2" ? 2 : 3;
  byoc_split_plan(&p, values.machine().threads, values.machine().PartOfCache("split_copy"));
  p.of.threads =
      values.machine().ThreadsFor(p.of.images * byoc_split_image_rows(&p) * p.of.outputs *
                                      byoc_split_chunks(&p) * BYOC_TILE_DEPTH,
                                  "wake_split");
  KernelCall call = CallOf(kSplit, kSplitPack, p, *frame, byoc_split_scratch_bytes(&p),
                           byoc_split_packed_bytes(&p));
  return {Candidate{op, {}, Cat("bf16x", p.parts, ":avx512_core_amx"), std::move(call), WorkOf(p)}};
}

// Products with weights of 8 or 4 bits that are constant.

namespace {

constexpr Kernel kCompressedMatmul = {"compressed_matmul", "compressed_matmul",
                                      byoc_compressed_matmul};
constexpr Kernel kCompressedPack = {"compressed_pack", "compressed_plan", byoc_compressed_pack};

byoc_compressed_params ParamsOf(const NodeView& n) {
  byoc_compressed_params p{};
  p.isa = n.lowering.isa().Vectors().value_or(static_cast<byoc_isa>(0));
  p.rows = n.Shape(0)[0];
  p.depth = n.Shape(0)[1];
  p.columns = n.OutShape()[1];
  p.group = n.a.group_size;
  p.bits = n.Shape(1)[1] == p.depth ? 8 : 4;
  p.has_zero_points = n.OwnInputs() == 4;
  p.scale_bits = n.a.scale_bits;
  p.rounds = n.a.alg == "int8";
  p.has_vnni = p.rounds && n.lowering.isa().HasExactIntegerProducts();
  p.threads = n.lowering.machine().threads;
  return p;
}

int Packed(const NodeView& n, const byoc_compressed_params& p) {
  byoc_compressed_params of_weights = p;  // the same for any number of rows
  of_weights.rows = of_weights.post_ops = of_weights.threads = 0;
  of_weights.rounds = of_weights.has_vnni = 0;
  std::vector<OpArg> args = {n.AsDense(DNNL_ARG_WEIGHTS, 1), n.AsDense(DNNL_ARG_SCALE, 2)};
  if (p.has_zero_points) args.push_back(n.AsDense(DNNL_ARG_SHIFT, 3));
  for (const OpArg& arg : args) {
    if (!n.lowering.IsConstant(arg.value)) {
      Fail(ErrorKind::kUnsupported, "its weights, scales and zero points must be constants");
    }
  }
  return n.lowering.Pack(kCompressedPack, AsParams(of_weights), args, n.In(1),
                         byoc_compressed_packed_bytes(&p));
}

}  // namespace

static bool FuseCompressedMatmul(const NodeView& n, const std::vector<PostOpDesc>& post_ops) {
  byoc_compressed_params p = ParamsOf(n);
  if (p.isa == 0 && !post_ops.empty()) return false;
  std::vector<MemoryDesc> layouts(post_ops.size());
  for (size_t i = 0; i < post_ops.size(); ++i) {
    const int operand = post_ops[i].value;
    if (operand >= 0) layouts[i] = RawLayout(n.lowering.shape(operand), n.lowering.dtype(operand));
  }
  const MemoryDesc dst = Dense(n.OutShape(), DType::kFloat32);
  std::vector<OpArg> operands(2);
  const auto described =
      DescribePostOps(post_ops, OperandsWithStrides(std::move(layouts), byoc_lanes(p.isa)),
                      n.OutShape(), &operands);
  if (!described) return false;
  const int64_t bytes = byoc_compressed_packed_bytes(&p);
  operands[0] = n.AsDense(DNNL_ARG_SRC, 0);
  operands[1] = {DNNL_ARG_WEIGHTS, Packed(n, p), Dense({bytes}, DType::kUInt8)};
  operands.push_back({DNNL_ARG_DST, n.output, dst});
  p.post_ops = static_cast<int64_t>(described->size());

  const char* name = p.rounds ? "compressed_integer" : "compressed";
  Step step = StepOf(kCompressedMatmul, KernelImpl(name, p.isa), p, *described);
  step.op.kind = dnnl::primitive::kind::matmul;  // for reports
  step.op.post_ops = post_ops;
  n.lowering.EmitKernel(std::move(step), operands, byoc_compressed_scratch_bytes(&p));
  return true;
}

static void LowerCompressedMatmul(const NodeView& n) { FuseCompressedMatmul(n, {}); }

const KindRow kCompressedMatmulRow = {nullptr, LowerCompressedMatmul, FuseCompressedMatmul};

}  // namespace tvm_byoc_dnnl
