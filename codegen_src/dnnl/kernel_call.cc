// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kernel_call.h"

#include <algorithm>

#include "dnnl/layout.h"
#include "dnnl/lowering.h"

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
    {Algorithm::eltwise_round, BYOC_ROUND},
    {Algorithm::eltwise_log, BYOC_LOG},
    {Algorithm::eltwise_soft_relu, BYOC_SOFT_RELU},
    {Algorithm::binary_add, BYOC_ADD},
    {Algorithm::binary_sub, BYOC_SUB},
    {Algorithm::binary_mul, BYOC_MUL},
    {Algorithm::binary_div, BYOC_DIV},
    {Algorithm::binary_max, BYOC_MAX},
    {Algorithm::binary_min, BYOC_MIN},
};

/// A post-op as kernels know it, still without its operand; nothing for one that they do not have.
std::optional<byoc_post_op> WithoutOperand(const PostOpDesc& op) {
  if (op.of_numbers) return std::nullopt;  // theirs keep a NaN
  const Algorithm alg = op.kind == PostOpDesc::Kind::kSum ? Algorithm::binary_add : op.alg;
  for (const PostOpRow& row : kPostOps) {
    if (row.alg != alg) continue;
    byoc_post_op result{};
    result.kind = row.kind;
    result.alpha = op.alpha;
    result.beta = op.beta;
    result.operand = -1;
    return result;
  }
  return std::nullopt;
}

/// How an operand of these sizes is spread over a result; nothing for forms that kernels do not
/// have.
std::optional<byoc_operand> OperandForm(const Dims& dims, const Dims& dst, size_t channels) {
  if (dims == dst) return BYOC_PER_ELEMENT;
  const int64_t elements = ElementCount(dims);
  if (elements == 1) return BYOC_PER_TENSOR;
  const bool is_alike = dims.size() == dst.size() && dims[channels] == dst[channels];
  if (is_alike && elements == dims[channels]) return BYOC_PER_CHANNEL;
  return std::nullopt;
}

/// An image of whose channels each is an image of its own.
std::optional<byoc_strides> PlanesOf(const MemoryDesc& md) {
  const Dims dims = md.get_dims(), strides = md.get_strides();
  if (dims.size() != 4 || !IsStrided(md) || strides[3] != 1) return std::nullopt;
  return byoc_strides{strides[0], strides[2], 1, strides[1], 1};
}

}  // namespace

std::string KernelImpl(const std::string& name, int64_t isa) {
  return name + (isa == BYOC_AVX512 ? ":avx512_core" : isa == BYOC_AVX2 ? ":avx2" : ":c");
}

std::optional<byoc_strides> StridesOf(const MemoryDesc& md, int64_t lanes) {
  const Dims dims = md.get_dims(), strides = md.get_strides();
  if (dims.size() == 2 && IsStrided(md) && (strides[1] == 1 || dims[1] == 1)) {
    return byoc_strides{0, 0, strides[0], 0, dims[1]};
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

Operands OperandsWithStrides(std::vector<MemoryDesc> layouts, int64_t lanes) {
  return {std::move(layouts), [lanes](const PostOpDesc&, const MemoryDesc& md, byoc_post_op* op) {
            const std::optional<byoc_strides> strides = StridesOf(md, lanes);
            if (strides) op->strides = *strides;
            return strides && IsFloat(md);
          }};
}

std::optional<std::vector<byoc_post_op>> DescribePostOps(const std::vector<PostOpDesc>& post_ops,
                                                         const Operands& operands, const Dims& dst,
                                                         std::vector<OpArg>* args) {
  std::vector<byoc_post_op> result;
  for (size_t i = 0; i < post_ops.size(); ++i) {
    std::optional<byoc_post_op> op = WithoutOperand(post_ops[i]);
    if (!op) return std::nullopt;
    if (post_ops[i].kind != PostOpDesc::Kind::kEltwise) {
      const MemoryDesc& md = operands.layouts[i];
      const auto form = OperandForm(md.get_dims(), dst, operands.channels);
      const bool serves = form == BYOC_PER_ELEMENT
                              ? operands.place(post_ops[i], md, &*op)
                              : form && (form == BYOC_PER_TENSOR || IsDense(md)) && IsFloat(md);
      if (!serves) return std::nullopt;
      op->form = *form;
      op->operand = static_cast<int64_t>(args->size());
      args->push_back({PostOpArg(i), post_ops[i].value, md});
    }
    result.push_back(*op);
  }
  return result;
}

MemoryDesc WeightsOf(const OpDesc& op, const Lowering& values, byoc_weight_strides* strides) {
  const int value = op.Find(DNNL_ARG_WEIGHTS)->value;
  const Dims& dims = values.shape(value);
  const bool is_matmul = op.kind == dnnl::primitive::kind::matmul;
  const size_t rank = values.shape(op.Find(DNNL_ARG_DST)->value).size();
  const size_t first = is_matmul ? dims.size() - 2 : dims.size() - rank;  // behind that of groups
  MemoryDesc md = values.Layout(value);
  bool is_even = IsStrided(md);
  for (size_t axis = first + 3; is_even && axis < dims.size(); ++axis) {
    const Dims s = md.get_strides();
    is_even = dims[axis - 1] == 1 || s[axis - 1] == dims[axis] * s[axis];
  }
  if (!is_even) md = Dense(dims, values.dtype(value));
  const Dims s = md.get_strides();
  *strides = is_matmul
                 ? byoc_weight_strides{0, s[first + 1], s[first], 0}
                 : byoc_weight_strides{first == 1 ? s[0] : 0, s[first], s[first + 1], s.back()};
  return md;
}

std::optional<KernelFrame> FrameOf(const Candidate& primitive, const Lowering& values,
                                   Reads reads) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  const bool suits = primitive.pd && isa && op.scalings.empty() &&
                     values.IsConstant(op.Find(DNNL_ARG_WEIGHTS)->value) &&
                     !values.IsConstant(op.Find(DNNL_ARG_SRC)->value) &&
                     std::all_of(op.args.begin(), op.args.end(), [&](const OpArg& arg) {
                       return values.dtype(arg.value) == DType::kFloat32;
                     });
  if (!suits) return std::nullopt;
  const int64_t lanes = byoc_lanes(*isa);
  MemoryDesc of_src = primitive.pd.Arg(DNNL_ARG_SRC), of_dst = primitive.pd.Arg(DNNL_ARG_DST);
  const OpArg& src = *op.Find(DNNL_ARG_SRC);
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  const bool sums = std::any_of(op.post_ops.begin(), op.post_ops.end(), [](const PostOpDesc& p) {
    return p.kind == PostOpDesc::Kind::kSum;  // over the memory of its operand
  });
  const std::optional<View> slice = values.SliceOfConcat(dst.value);
  if (slice && !sums && SameLayout(of_dst, ChannelsLast(values.shape(dst.value), DType::kFloat32)))
    of_dst = slice->md;
  const auto strides_of_src = [&](const MemoryDesc& md) {
    const bool as_planes = reads == Reads::kPlanes || reads == Reads::kPresentPlanes;
    const std::optional<byoc_strides> strides = StridesOf(md, lanes);
    return strides || !as_planes ? strides : PlanesOf(md);
  };
  const bool as_present = reads == Reads::kAsPresent || reads == Reads::kPresentPlanes;
  if (as_present && IsAny(src.md) && strides_of_src(values.Layout(src.value)))
    of_src = values.Layout(src.value);
  const std::optional<byoc_strides> src_strides = strides_of_src(of_src);
  const std::optional<byoc_strides> dst_strides = StridesOf(of_dst, lanes);
  if (!src_strides || !dst_strides) return std::nullopt;
  KernelFrame frame;
  frame.of = ConvolutionOf(op, of_src.get_dims(), of_dst.get_dims(), values.machine());
  frame.of.src = *src_strides;
  frame.of.dst = *dst_strides;
  frame.of.has_bias = op.Find(DNNL_ARG_BIAS) != nullptr;
  frame.of.post_ops = static_cast<int64_t>(op.post_ops.size());
  const MemoryDesc weights = WeightsOf(op, values, &frame.of.weights);
  for (const OpArg& arg : op.args) {
    if (arg.arg == DNNL_ARG_DST) continue;
    frame.args.push_back({arg.arg, arg.value,
                          arg.arg == DNNL_ARG_SRC ? of_src
                          : arg.arg == DNNL_ARG_WEIGHTS
                              ? weights
                              : Dense(arg.md.get_dims(), DType::kFloat32)});
  }
  std::vector<MemoryDesc> operands(op.post_ops.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (op.post_ops[i].kind == PostOpDesc::Kind::kSum) operands[i] = of_dst;
    if (op.post_ops[i].kind == PostOpDesc::Kind::kBinary)
      operands[i] = primitive.pd.Arg(PostOpArg(i));
  }
  auto post_ops = DescribePostOps(op.post_ops, OperandsWithStrides(std::move(operands), lanes),
                                  of_dst.get_dims(), &frame.args);
  if (!post_ops) return std::nullopt;
  frame.post_ops = std::move(*post_ops);
  frame.args.push_back({DNNL_ARG_DST, dst.value, of_dst});
  return frame;
}

byoc_convolution ConvolutionOf(const OpDesc& op, const Dims& src, const Dims& dst,
                               const Machine& machine) {
  Dims in = src, out = dst, weights = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  byoc_convolution c{};
  c.isa = machine.isa.Vectors().value_or(static_cast<byoc_isa>(0));
  c.threads = machine.threads;
  c.stride_y = c.stride_x = c.dilation_y = c.dilation_x = 1;
  if (op.kind == dnnl::primitive::kind::matmul) {
    in = {1, src[1], 1, src[0]};
    out = {1, dst[1], 1, dst[0]};
    weights = {dst[1], src[1], 1, 1};
  } else {
    c.pad_left = op.pad_begin.back();
    c.stride_x = op.strides.back();
    c.dilation_x = op.dilates.back() + 1;  // oneDNN counts the holes
    if (src.size() == 3) {
      for (Dims* dims : {&in, &out, &weights}) dims->insert(dims->end() - 1, 1);
    } else {
      c.pad_top = op.pad_begin[0];
      c.stride_y = op.strides[0];
      c.dilation_y = op.dilates[0] + 1;
    }
  }
  c.groups = weights.size() > in.size() ? weights[0] : 1;
  c.images = in[0];
  c.channels = in[1] / c.groups;
  c.height = in[2];
  c.width = in[3];
  c.outputs = out[1] / c.groups;
  c.out_height = out[2];
  c.out_width = out[3];
  c.kernel_height = weights[weights.size() - 2];
  c.kernel_width = weights.back();
  return c;
}

}  // namespace tvm_byoc_dnnl
