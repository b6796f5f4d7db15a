// SPDX-License-Identifier: Apache-2.0
#include "dnnl/op_desc.h"

#include "common/support/error.h"
#include "dnnl/known_faults.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

dnnl::primitive_attr MakeAttr(const OpDesc& op) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  for (const ScalingDesc& s : op.scalings) {
    if (s.scale >= 0) attr.set_scales_mask(s.arg, s.scale_mask);
    if (s.zero_point >= 0) attr.set_zero_points_mask(s.arg, s.zero_point_mask);
  }
  if (op.post_ops.empty()) return attr;
  dnnl::post_ops post_ops;
  for (const PostOpDesc& post_op : op.post_ops) {
    switch (post_op.kind) {
      case PostOpDesc::Kind::kEltwise:
        post_ops.append_eltwise(post_op.alg, post_op.alpha, post_op.beta);
        break;
      case PostOpDesc::Kind::kBinary:
        post_ops.append_binary(post_op.alg, post_op.md);
        break;
      case PostOpDesc::Kind::kSum:
        post_ops.append_sum();
        break;
    }
  }
  attr.set_post_ops(post_ops);
  return attr;
}

/// Calls the C function that creates this kind of primitive.
dnnl_status_t Create(const OpDesc& op, dnnl_engine_t engine, const_dnnl_primitive_attr_t attr,
                     dnnl_primitive_desc_t* pd) {
  constexpr dnnl_prop_kind_t kInference = dnnl_forward_inference;
  const auto alg = static_cast<dnnl_alg_kind_t>(op.alg);
  auto md = [&](int arg) -> const_dnnl_memory_desc_t {
    const OpArg* found = op.Find(arg);
    return found == nullptr ? nullptr : found->md.get();
  };
  const_dnnl_memory_desc_t src = md(DNNL_ARG_SRC);
  const_dnnl_memory_desc_t weights = md(DNNL_ARG_WEIGHTS);
  const_dnnl_memory_desc_t bias = md(DNNL_ARG_BIAS);
  const_dnnl_memory_desc_t dst = md(DNNL_ARG_DST);
  const int axis = static_cast<int>(op.axis);

  switch (op.kind) {
    case PrimitiveKind::convolution:
      return dnnl_convolution_forward_primitive_desc_create(
          pd, engine, kInference, alg, src, weights, bias, dst, op.strides.data(),
          op.dilates.data(), op.pad_begin.data(), op.pad_end.data(), attr);
    case PrimitiveKind::deconvolution:
      return dnnl_deconvolution_forward_primitive_desc_create(
          pd, engine, kInference, alg, src, weights, bias, dst, op.strides.data(),
          op.dilates.data(), op.pad_begin.data(), op.pad_end.data(), attr);
    case PrimitiveKind::matmul:
      return dnnl_matmul_primitive_desc_create(pd, engine, src, weights, bias, dst, attr);
    case PrimitiveKind::pooling:
      return dnnl_pooling_forward_primitive_desc_create(
          pd, engine, kInference, alg, src, dst, op.strides.data(), op.kernel.data(),
          op.dilates.data(), op.pad_begin.data(), op.pad_end.data(), attr);
    case PrimitiveKind::eltwise:
      return dnnl_eltwise_forward_primitive_desc_create(pd, engine, kInference, alg, src, dst,
                                                        op.alpha, op.beta, attr);
    case PrimitiveKind::binary:
      return dnnl_binary_primitive_desc_create(pd, engine, alg, src, md(DNNL_ARG_SRC_1), dst, attr);
    case PrimitiveKind::prelu:
      return dnnl_prelu_forward_primitive_desc_create(pd, engine, kInference, src, weights, dst,
                                                      attr);
    case PrimitiveKind::softmax:
      return dnnl_softmax_forward_primitive_desc_create(pd, engine, kInference, alg, src, dst, axis,
                                                        attr);
    case PrimitiveKind::batch_normalization:
      return dnnl_batch_normalization_forward_primitive_desc_create(
          pd, engine, kInference, src, dst, op.epsilon, op.flags, attr);
    case PrimitiveKind::layer_normalization:
      return dnnl_layer_normalization_forward_primitive_desc_create(
          pd, engine, kInference, src, dst, nullptr, op.epsilon, op.flags, attr);
    case PrimitiveKind::lrn:
      return dnnl_lrn_forward_primitive_desc_create(pd, engine, kInference, alg, src, dst,
                                                    op.local_size, op.alpha, op.beta, op.k, attr);
    case PrimitiveKind::reduction:
      return dnnl_reduction_primitive_desc_create(pd, engine, alg, src, dst, op.p, op.epsilon,
                                                  attr);
    case PrimitiveKind::resampling:
      return dnnl_resampling_forward_primitive_desc_create(pd, engine, kInference, alg, nullptr,
                                                           src, dst, attr);
    case PrimitiveKind::concat: {
      std::vector<const_dnnl_memory_desc_t> sources;
      for (const OpArg& arg : op.args) {
        if (arg.arg != DNNL_ARG_DST) sources.push_back(arg.md.get());
      }
      return dnnl_concat_primitive_desc_create(pd, engine, dst, static_cast<int>(sources.size()),
                                               axis, sources.data(), attr);
    }
    case PrimitiveKind::shuffle:
      return dnnl_shuffle_forward_primitive_desc_create(pd, engine, kInference, src, dst, axis,
                                                        op.group_size, attr);
    case PrimitiveKind::reorder:
      return dnnl_reorder_primitive_desc_create(pd, src, engine, dst, engine, attr);
    default:
      return dnnl_unimplemented;
  }
}

template <typename Args>
auto* FindArg(Args& args, int arg) {
  for (auto& candidate : args) {
    if (candidate.arg == arg) return &candidate;
  }
  return static_cast<decltype(&args[0])>(nullptr);
}

}  // namespace

const OpArg* OpDesc::Find(int arg) const { return FindArg(args, arg); }
OpArg* OpDesc::Find(int arg) { return FindArg(args, arg); }

PrimitiveDesc CreatePrimitiveDesc(const OpDesc& op, const dnnl::engine& engine) {
  PrimitiveDesc result;
  dnnl::primitive_attr attr;
  try {
    attr = MakeAttr(op);
  } catch (const dnnl::error&) {  // e.g. an operand of a dtype or rank that no post-op takes
    return result;
  }
  dnnl_primitive_desc_t pd = nullptr;
  if (Create(op, engine.get(), attr.get(), &pd) == dnnl_success) result.reset(pd);
  if (result && KnownFault(op, result) != nullptr) return PrimitiveDesc();
  return result;
}

MemoryDesc QueryArg(const PrimitiveDesc& pd, int arg) {
  return pd.query_md(dnnl::query::exec_arg_md, arg);
}

int PostOpArg(size_t index) {
  return DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(index)) | DNNL_ARG_SRC_1;
}

}  // namespace tvm_byoc_dnnl
