// SPDX-License-Identifier: Apache-2.0
// Softmax of bytes and of short rows of float32, layer normalisation of bytes and float32, means of
// float32, and rows divided by the root of the mean of their squares, along the last axes, by our
// kernels.
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_normalize.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

constexpr Kernel kNormalize = {"normalize", "normalize", byoc_normalize};

bool IsFloat(DType dtype) { return dtype == DType::kFloat32; }

/// Whether the axes behind the first ones, which are kept, are reduced.
bool ReducesLast(const Dims& in, const Dims& out) {
  const auto reduced = std::mismatch(in.begin(), in.end(), out.begin()).first - in.begin();
  return std::all_of(out.begin() + reduced, out.end(), [](int64_t dim) { return dim == 1; });
}

/// Whether it is a mean with a factor and an addend, which the kernel takes.
bool IsScaled(const OpDesc& op) {
  return op.kind == PrimitiveKind::reduction && op.post_ops.size() == 1 &&
         op.post_ops[0].alg == dnnl::algorithm::eltwise_linear;
}

/// The form of a row that the kernel can make here; nothing if there is none.
std::optional<byoc_row_form> FormOf(const OpDesc& op, const Lowering& values, byoc_isa isa) {
  const OpArg* src = op.Find(DNNL_ARG_SRC);
  const OpArg* dst = op.Find(DNNL_ARG_DST);
  if (src == nullptr || dst == nullptr || (!op.post_ops.empty() && !IsScaled(op)))
    return std::nullopt;
  const DType from = values.dtype(src->value), to = values.dtype(dst->value);
  const auto last = static_cast<int64_t>(values.shape(src->value).size()) - 1;
  switch (op.kind) {
    case PrimitiveKind::softmax:
      if (!(IsByte(from) && IsByte(to)) &&
          !(IsFloat(from) && IsFloat(to) && values.shape(src->value).back() <= byoc_lanes(isa)))
        return std::nullopt;
      if (values.IsConstant(src->value) || op.axis != last ||
          op.alg != dnnl::algorithm::softmax_accurate)
        return std::nullopt;
      return BYOC_SOFTMAX;
    case PrimitiveKind::reduction:
      if (!IsFloat(from) || !IsFloat(to) || op.alg != dnnl::algorithm::reduction_mean)
        return std::nullopt;
      if (!ReducesLast(values.shape(src->value), values.shape(dst->value))) return std::nullopt;
      return BYOC_MEAN;
    case PrimitiveKind::layer_normalization: {
      const bool suits = std::all_of(op.args.begin(), op.args.end(), [&](const OpArg& arg) {
        const DType dtype = values.dtype(arg.value);
        const bool is_parameter = arg.arg == DNNL_ARG_SCALE || arg.arg == DNNL_ARG_SHIFT;
        return IsFloat(dtype) || (IsByte(dtype) && !is_parameter);
      });
      if (!suits) return std::nullopt;
      return IsRms(op) ? BYOC_RMS : BYOC_LAYER;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<Candidate> OfferNormalize(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  if (!isa) return {};
  const std::optional<byoc_row_form> form = FormOf(op, values, *isa);
  if (!form) return {};
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
  p.form = *form;
  const int64_t count = ElementCount(values.shape(src));
  p.rows = p.form == BYOC_MEAN ? ElementCount(values.shape(dst))
                               : count / byoc_max(values.shape(src).back(), 1);
  p.columns = count / byoc_max(p.rows, 1);
  p.src_dtype = ToKernels(values.dtype(src));
  p.dst_dtype = ToKernels(values.dtype(dst));
  p.epsilon = op.epsilon;
  p.factor = IsScaled(op) ? op.post_ops[0].alpha : 1;
  p.addend = IsScaled(op) ? op.post_ops[0].beta : 0;
  p.threads = values.machine().ThreadsFor(p.rows * p.columns, "wake_normalize");
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
  call.params = AsParams(p);
  call.scratch_bytes = p.threads * byoc_normalize_numbers(&p) * 4;

  Candidate candidate{op, {}, KernelImpl("normalize", p.isa), std::move(call), {}};
  const int64_t vectors = (p.columns + byoc_lanes(p.isa) - 1) / byoc_lanes(p.isa);
  candidate.work.vectors = static_cast<double>(p.rows) * static_cast<double>(vectors);
  return {candidate};
}

}  // namespace tvm_byoc_dnnl
