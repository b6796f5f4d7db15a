// SPDX-License-Identifier: Apache-2.0
// Products of matrices with constant weights by our packed kernel: in the layouts that are decided
// for oneDNN's matmul, with the same bias and post-ops.
#include <omp.h>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_product_plan.h"

namespace tvm_byoc_dnnl {

std::optional<Candidate> OfferProduct(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  if (op.kind != dnnl::primitive::kind::matmul) return std::nullopt;
  const OpArg& weights = *op.Find(DNNL_ARG_WEIGHTS);
  if (weights.md.get_dims().size() != 2) return std::nullopt;
  MemoryDesc plain = values.Layout(weights.value);
  if (!IsStrided(plain)) plain = Dense(weights.md.get_dims(), DType::kFloat32);
  std::optional<KernelFrame> frame = FrameOf(primitive, values, plain);
  if (!frame) return std::nullopt;

  byoc_product_params p{};
  p.isa = frame->isa;
  p.rows = frame->dst.get_dims()[0];
  p.columns = frame->dst.get_dims()[1];
  p.depth = frame->src.get_dims()[1];
  p.src_row = frame->src_strides.row;
  p.dst_row = frame->dst_strides.row;
  p.has_bias = op.Find(DNNL_ARG_BIAS) != nullptr;
  p.post_ops = static_cast<int64_t>(frame->post_ops.size());
  p.threads = omp_get_max_threads();
  KernelCall call = CallOf(kProduct, p, std::move(*frame), byoc_product_scratch_bytes(&p));
  const byoc_product_pack_params pack = {p.isa, p.columns, p.depth, plain.get_strides()[0],
                                         plain.get_strides()[1]};
  KernelCall::Packing packing{DNNL_ARG_WEIGHTS, &kProductPack, {}, 0};
  Append(pack, &packing.params);
  packing.bytes = static_cast<int64_t>(byoc_product_packed_bytes(p.isa, p.columns, p.depth));
  call.packing = std::move(packing);

  Candidate candidate{op, {}, KernelImpl("product", p.isa), std::move(call), {}};
  candidate.work.products = static_cast<double>(p.rows) * static_cast<double>(p.depth) *
                            static_cast<double>(byoc_round_up(p.columns, byoc_panel(p.isa)));
  return candidate;
}

}  // namespace tvm_byoc_dnnl
