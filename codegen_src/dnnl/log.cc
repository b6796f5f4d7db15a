// SPDX-License-Identifier: Apache-2.0
// The logarithm of float32 by our kernel.
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_normalize.h"

namespace tvm_byoc_dnnl {

std::optional<Candidate> OfferLog(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  if (!isa || op.alg != dnnl::algorithm::eltwise_log || !op.post_ops.empty()) return std::nullopt;
  OpArg src = *op.Find(DNNL_ARG_SRC);
  OpArg dst = *op.Find(DNNL_ARG_DST);
  if (values.dtype(src.value) != DType::kFloat32 || values.dtype(dst.value) != DType::kFloat32) {
    return std::nullopt;
  }
  const Dims& shape = values.shape(src.value);
  if (!IsStrided(src.md)) src.md = Dense(shape, DType::kFloat32);
  dst.md = Strided(shape, DType::kFloat32, src.md.get_strides());
  byoc_log_params p{};
  p.isa = *isa;
  p.count = ElementCount(shape);
  KernelCall call;
  call.kernel = &kLog;
  call.args = {src, dst};
  Append(p, &call.params);
  Candidate candidate{op, {}, KernelImpl("log", p.isa), std::move(call), {}};
  candidate.work.vectors = static_cast<double>(p.count) / static_cast<double>(byoc_lanes(p.isa));
  return candidate;
}

}  // namespace tvm_byoc_dnnl
