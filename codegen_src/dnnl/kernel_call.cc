// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kernel_call.h"

#include <unistd.h>

namespace tvm_byoc_dnnl {
namespace {

using Algorithm = dnnl::algorithm;

struct PostOpRow {
  Algorithm alg;
  byoc_post_op_kind kind;
};
constexpr PostOpRow kPostOps[] = {
    {Algorithm::eltwise_relu, BYOC_RELU},
    {Algorithm::eltwise_clip, BYOC_CLIP},
    {Algorithm::eltwise_linear, BYOC_LINEAR},
    {Algorithm::eltwise_abs, BYOC_ABS},
    {Algorithm::eltwise_square, BYOC_SQUARE},
    {Algorithm::eltwise_hardsigmoid, BYOC_HARDSIGMOID},
    {Algorithm::eltwise_hardswish, BYOC_HARDSWISH},
    {Algorithm::eltwise_logistic, BYOC_LOGISTIC},
    {Algorithm::eltwise_swish, BYOC_SWISH},
    {Algorithm::eltwise_gelu_erf, BYOC_GELU_ERF},
    {Algorithm::eltwise_gelu_tanh, BYOC_GELU_TANH},
    {Algorithm::binary_add, BYOC_ADD},
    {Algorithm::binary_sub, BYOC_SUB},
    {Algorithm::binary_mul, BYOC_MUL},
    {Algorithm::binary_div, BYOC_DIV},
    {Algorithm::binary_max, BYOC_MAX},
    {Algorithm::binary_min, BYOC_MIN},
};

/// A post-op as the kernel knows it, but for the number of its operand; `md`: of the operand.
std::optional<byoc_post_op> Describe(const PostOpDesc& op, const MemoryDesc& md,
                                     const MemoryDesc& dst, int64_t lanes) {
  byoc_post_op result{};
  result.alpha = op.alpha;
  result.beta = op.beta;
  result.operand = -1;
  std::optional<byoc_post_op_kind> kind = KernelPostOp(op);
  if (!kind) return std::nullopt;
  result.kind = *kind;
  if (op.kind == PostOpDesc::Kind::kEltwise) return result;
  if (md.get_data_type() != dnnl::memory::data_type::f32) return std::nullopt;
  const Dims dims = md.get_dims(), of_dst = dst.get_dims();
  const int64_t elements = ElementCount(dims);
  if (dims == of_dst) {
    std::optional<byoc_strides> strides = StridesOf(md, lanes);
    if (!strides) return std::nullopt;
    result.form = BYOC_PER_ELEMENT;
    result.strides = *strides;
  } else if (elements == 1) {
    result.form = BYOC_PER_TENSOR;
  } else if (dims.size() == of_dst.size() && dims[1] == of_dst[1] && elements == dims[1] &&
             IsDense(md)) {
    result.form = BYOC_PER_CHANNEL;
  } else {
    return std::nullopt;
  }
  return result;
}

}  // namespace

std::optional<byoc_post_op_kind> KernelPostOp(const PostOpDesc& op) {
  if (op.kind == PostOpDesc::Kind::kSum) return BYOC_ADD;
  for (const PostOpRow& row : kPostOps) {
    if (row.alg == op.alg) return row.kind;
  }
  return std::nullopt;
}

std::optional<byoc_isa> KernelIsa() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  auto has = [&](dnnl::cpu_isa set) {
    return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  if (has(dnnl::cpu_isa::avx512_core)) return BYOC_AVX512;
  if (has(dnnl::cpu_isa::avx2)) return BYOC_AVX2;
  return std::nullopt;
}

int64_t LanesOf(byoc_isa isa) { return isa == BYOC_AVX512 ? 16 : 8; }

int64_t CacheBytes() {
  static const int64_t bytes = [] {
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return known > 0 ? known : 512L << 10;
  }();
  return bytes;
}

std::optional<byoc_strides> StridesOf(const MemoryDesc& md, int64_t lanes) {
  const Dims dims = md.get_dims(), strides = md.get_strides();
  if (dims.size() == 2 && IsStrided(md) && (strides[1] == 1 || dims[1] == 1)) {
    return byoc_strides{0, strides[0], 0, 0, dims[1]};
  }
  if (dims.size() != 4) return std::nullopt;
  byoc_strides result = {strides[0], strides[2], strides[3], 0, dims[1]};
  if (IsStrided(md)) {
    if (strides[1] != 1 && dims[1] != 1) return std::nullopt;
    return result;
  }
  const Dims blocks = md.get_inner_blks();
  if (blocks.size() != 1 || md.get_inner_idxs()[0] != 1) return std::nullopt;
  if (blocks[0] % lanes != 0 || dims[1] % blocks[0] != 0) return std::nullopt;
  result.lanes = blocks[0];
  result.block = strides[1];
  return result;
}

std::optional<std::vector<byoc_post_op>> DescribePostOps(const Candidate& primitive,
                                                         const MemoryDesc& dst, int64_t lanes,
                                                         std::vector<OpArg>* args) {
  std::vector<byoc_post_op> result;
  for (size_t i = 0; i < primitive.op.post_ops.size(); ++i) {
    const PostOpDesc& op = primitive.op.post_ops[i];
    MemoryDesc md;
    if (op.kind == PostOpDesc::Kind::kSum) md = dst;
    if (op.kind == PostOpDesc::Kind::kBinary) md = QueryArg(primitive.pd, PostOpArg(i));
    std::optional<byoc_post_op> described = Describe(op, md, dst, lanes);
    if (!described) return std::nullopt;
    if (op.kind != PostOpDesc::Kind::kEltwise) {
      described->operand = static_cast<int64_t>(args->size());
      args->push_back({PostOpArg(i), op.value, md});
    }
    result.push_back(*described);
  }
  return result;
}

}  // namespace tvm_byoc_dnnl
