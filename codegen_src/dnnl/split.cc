// SPDX-License-Identifier: Apache-2.0
// Convolutions and products of matrices with constant weights in float32 on AMX, by several
// products of bfloat16: in the layouts that are decided for oneDNN's primitive, with the same bias
// and post-ops.
#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_split_plan.h"
#if BYOC_HAS_AMX
#include "kernels/byoc_split.h"
#include "kernels/byoc_split_parts.h"
#endif

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

constexpr Kernel kSplit = {"split", "split", BYOC_IF_AMX(byoc_split)};
constexpr Kernel kSplitPack = {"split_pack", "split_parts", BYOC_IF_AMX(byoc_split_pack)};

bool Suits(const OpDesc& op) {
  if (op.kind != PrimitiveKind::convolution && op.kind != PrimitiveKind::matmul) return false;
  for (const char* in_float32 : {"direct", "float32", "winograd_2x2"}) {
    if (op.preferred == in_float32) return false;
  }
  const size_t axes = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims().size();
  return axes == (op.kind == PrimitiveKind::convolution ? 4 : 2);
}

byoc_split_pack_params DescribeWeights(const byoc_split_params& p, const MemoryDesc& weights) {
  const Dims strides = weights.get_strides();
  if (strides.size() == 2) return {p, strides[1], strides[0], 0, 0};
  return {p, strides[0], strides[1], strides[2], strides[3]};
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
  if (!Suits(op) || !values.isa().HasTiles()) return {};
  const std::optional<KernelFrame> frame =
      FrameOf(primitive, values, Weights::kInAnyOrder, Reads::kPlanes);
  if (!frame) return {};

  byoc_split_params p{};
  p.of = frame->of;
  p.parts = op.preferred == "bf16x2" ? 2 : 3;
  byoc_split_plan(&p, values.machine().threads, values.machine().cache_bytes);
  KernelCall call = CallOf(
      kSplit, p, *frame, byoc_split_scratch_bytes(&p),
      PackingOf(kSplitPack, DescribeWeights(p, frame->weights), byoc_split_packed_bytes(&p)));
  return {Candidate{op, {}, Cat("bf16x", p.parts, ":avx512_core_amx"), std::move(call), WorkOf(p)}};
}

}  // namespace tvm_byoc_dnnl
