// SPDX-License-Identifier: Apache-2.0
// Products of matrices with constant weights by our packed kernel: in the layouts that are decided
// for oneDNN's matmul, with the same bias and post-ops.
#include <omp.h>

#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_product_plan.h"

namespace tvm_byoc_dnnl {
namespace {

bool Suits(const OpDesc& op, const Lowering& values) {
  if (op.kind != dnnl::primitive::kind::matmul || !op.scalings.empty()) return false;
  const OpArg& weights = *op.Find(DNNL_ARG_WEIGHTS);
  return weights.md.get_dims().size() == 2 && values.IsConstant(weights.value) &&
         !values.IsConstant(op.Find(DNNL_ARG_SRC)->value) &&
         std::all_of(op.args.begin(), op.args.end(),
                     [&](const OpArg& arg) { return values.dtype(arg.value) == DType::kFloat32; });
}

}  // namespace

std::optional<Candidate> OfferProduct(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = KernelIsa();
  if (!primitive.pd || !isa || !Suits(op, values)) return std::nullopt;
  const int64_t lanes = LanesOf(*isa);
  const MemoryDesc src = QueryArg(primitive.pd, DNNL_ARG_SRC);
  const MemoryDesc dst = QueryArg(primitive.pd, DNNL_ARG_DST);
  const std::optional<byoc_strides> src_strides = StridesOf(src, lanes);
  const std::optional<byoc_strides> dst_strides = StridesOf(dst, lanes);
  if (!src_strides || !dst_strides) return std::nullopt;

  const OpArg& weights = *op.Find(DNNL_ARG_WEIGHTS);
  MemoryDesc plain = values.Layout(weights.value);
  if (!IsStrided(plain)) plain = Dense(weights.md.get_dims(), DType::kFloat32);
  KernelCall call;
  for (const OpArg& arg : op.args) {
    if (arg.arg == DNNL_ARG_DST) continue;
    call.args.push_back({arg.arg, arg.value,
                         arg.arg == DNNL_ARG_SRC       ? src
                         : arg.arg == DNNL_ARG_WEIGHTS ? plain
                                                       : QueryArg(primitive.pd, arg.arg)});
  }
  const auto post_ops = DescribePostOps(primitive, dst, lanes, &call.args);
  if (!post_ops) return std::nullopt;
  call.args.push_back({DNNL_ARG_DST, op.Find(DNNL_ARG_DST)->value, dst});

  byoc_product_params p{};
  p.isa = *isa;
  p.rows = dst.get_dims()[0];
  p.columns = dst.get_dims()[1];
  p.depth = src.get_dims()[1];
  p.src_row = src_strides->row;
  p.dst_row = dst_strides->row;
  p.has_bias = op.Find(DNNL_ARG_BIAS) != nullptr;
  p.post_ops = static_cast<int64_t>(post_ops->size());
  p.threads = omp_get_max_threads();
  call.kernel = &kProduct;
  Append(p, &call.params);
  for (const byoc_post_op& post_op : *post_ops) Append(post_op, &call.params);
  call.scratch_bytes = static_cast<int64_t>(byoc_product_scratch_bytes(&p));

  const byoc_product_pack_params pack = {p.isa, p.columns, p.depth, plain.get_strides()[0],
                                         plain.get_strides()[1]};
  KernelCall::Packing packing{DNNL_ARG_WEIGHTS, &kProductPack, {}, 0};
  Append(pack, &packing.params);
  packing.bytes = static_cast<int64_t>(byoc_product_packed_bytes(p.isa, p.columns, p.depth));
  call.packing = std::move(packing);

  Candidate candidate{op, {}, "product", std::move(call), {}};
  candidate.impl += *isa == BYOC_AVX512 ? ":avx512_core" : ":avx2";
  candidate.work.products =
      static_cast<double>(p.rows) * static_cast<double>(p.depth) *
      static_cast<double>(byoc_round_up(p.columns, byoc_product_panel(p.isa)));
  return candidate;
}

}  // namespace tvm_byoc_dnnl
