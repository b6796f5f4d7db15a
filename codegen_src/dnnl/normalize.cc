// SPDX-License-Identifier: Apache-2.0
// Softmax and layer normalisation of bytes along their last axis by our kernel.
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_normalize_plan.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

bool Suits(const OpDesc& op, const Lowering& values) {
  const bool is_softmax = op.kind == PrimitiveKind::softmax;
  if (!is_softmax && op.kind != PrimitiveKind::layer_normalization) return false;
  const OpArg& src = *op.Find(DNNL_ARG_SRC);
  const auto last = static_cast<int64_t>(values.shape(src.value).size()) - 1;
  return IsByte(values.dtype(src.value)) && IsByte(values.dtype(op.Find(DNNL_ARG_DST)->value)) &&
         op.post_ops.empty() && !values.IsConstant(src.value) &&
         (!is_softmax || (op.axis == last && op.alg == dnnl::algorithm::softmax_accurate));
}

}  // namespace

std::optional<Candidate> OfferNormalize(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  if (!isa || !Suits(op, values)) return std::nullopt;
  KernelCall call;
  auto add = [&](int arg, int value) {
    if (value < 0) return int64_t{-1};
    call.args.push_back({arg, value, Dense(values.shape(value), values.dtype(value))});
    return static_cast<int64_t>(call.args.size()) - 1;
  };
  auto find = [&](int arg) {
    const OpArg* found = op.Find(arg);
    return found == nullptr ? -1 : found->value;
  };
  const int src = find(DNNL_ARG_SRC), dst = find(DNNL_ARG_DST);
  byoc_normalize_params p{};
  p.isa = *isa;
  p.is_softmax = op.kind == PrimitiveKind::softmax;
  p.columns = values.shape(src).back();
  p.rows = p.columns == 0 ? 0 : ElementCount(values.shape(src)) / p.columns;
  p.src_dtype = *KernelDType(values.dtype(src));
  p.dst_dtype = *KernelDType(values.dtype(dst));
  p.epsilon = op.epsilon;
  p.threads = values.machine().threads;
  add(DNNL_ARG_SRC, src);
  p.src_scale = p.dst_scale = p.dst_zero = -1;
  for (const ScalingDesc& s : op.scalings) {
    const int64_t scale = add(DNNL_ARG_ATTR_SCALES | s.arg, s.scale);
    (s.arg == DNNL_ARG_DST ? p.dst_scale : p.src_scale) = scale;
    if (s.arg == DNNL_ARG_DST) p.dst_zero = add(DNNL_ARG_ATTR_ZERO_POINTS | s.arg, s.zero_point);
  }
  p.gamma = add(DNNL_ARG_SCALE, find(DNNL_ARG_SCALE));
  p.beta = add(DNNL_ARG_SHIFT, find(DNNL_ARG_SHIFT));
  p.result = add(DNNL_ARG_DST, dst);
  call.kernel = &kNormalize;
  Append(p, &call.params);
  call.scratch_bytes = p.threads * byoc_normalize_numbers(&p) * 4;

  Candidate candidate{op, {}, KernelImpl("normalize", p.isa), std::move(call), {}};
  const int64_t vectors = (p.columns + byoc_lanes(p.isa) - 1) / byoc_lanes(p.isa);
  candidate.work.vectors = static_cast<double>(p.rows) * static_cast<double>(vectors);
  return candidate;
}

}  // namespace tvm_byoc_dnnl
