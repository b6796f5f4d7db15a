// SPDX-License-Identifier: Apache-2.0
// Convolutions and products of 8-bit integers by our kernel, whose sums are exact on every CPU. It
// has its layouts itself, since oneDNN often has no primitive: channels innermost, rows dense.
#include <algorithm>
#include <array>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_integer.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kInteger = {"integer", "integer", byoc_integer};
constexpr Kernel kIntegerPack = {"integer_pack", "integer_plan", byoc_integer_pack};

using PrimitiveKind = dnnl::primitive::kind;

bool Suits(const OpDesc& op, const Lowering& values) {
  if (op.kind != PrimitiveKind::matmul && op.kind != PrimitiveKind::convolution &&
      op.kind != PrimitiveKind::deconvolution) {
    return false;
  }
  const OpArg& src = *op.Find(DNNL_ARG_SRC);
  const OpArg* bias = op.Find(DNNL_ARG_BIAS);
  return IsByte(values.dtype(src.value)) &&
         IsByte(values.dtype(op.Find(DNNL_ARG_WEIGHTS)->value)) &&
         KernelDType(values.dtype(op.Find(DNNL_ARG_DST)->value)) &&
         (bias == nullptr || values.dtype(bias->value) == DType::kFloat32) &&
         !values.IsConstant(src.value);
}

/// Strides of a stack of matrices: from one to the next, of rows, of columns.
using MatrixStrides = std::array<int64_t, 3>;

/// Nothing if the matrices are not equally far apart.
std::optional<MatrixStrides> Stack(const MemoryDesc& md) {
  if (!IsStrided(md)) return std::nullopt;
  const Dims dims = md.get_dims(), strides = md.get_strides();
  const size_t rank = dims.size();
  int64_t step = 0, count = 1;
  for (size_t i = rank - 2; i-- > 0;) {
    if (dims[i] == 1) continue;
    if (count == 1) {
      step = strides[i];
    } else if (strides[i] != step * count) {
      return std::nullopt;
    }
    count *= dims[i];
  }
  return MatrixStrides{step, strides[rank - 2], strides[rank - 1]};
}

/// The layouts of the arguments, and with them the sizes and strides.
struct Geometry {
  MemoryDesc src, weights, dst;
  byoc_integer_params p{};
  byoc_integer_pack_params pack{};
};

/// A window of one pixel, as a product of matrices has it.
void UseOnePixel(byoc_integer_params* p) {
  p->kernel_h = p->kernel_w = p->stride_h = p->stride_w = p->dilation_h = p->dilation_w = 1;
}

std::optional<Geometry> DescribeMatmul(const OpDesc& op, const Lowering& values) {
  const OpArg &src = *op.Find(DNNL_ARG_SRC), &weights = *op.Find(DNNL_ARG_WEIGHTS);
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  auto layout = [&](const OpArg& arg, bool is_transposable) {
    const MemoryDesc& present = values.Layout(arg.value);
    const std::optional<MatrixStrides> strides = Stack(present);
    const bool serves = strides && (is_transposable || (*strides)[2] == 1);
    return serves ? present : Dense(values.shape(arg.value), values.dtype(arg.value));
  };
  Geometry g;
  g.src = layout(src, false);
  g.weights = layout(weights, true);
  g.dst = Dense(values.shape(dst.value), values.dtype(dst.value));
  const Dims &of_src = values.shape(src.value), &of_weights = values.shape(weights.value);
  const Dims& of_dst = values.shape(dst.value);
  const size_t rank = of_dst.size();
  const int64_t rows = of_dst[rank - 2], columns = of_dst[rank - 1];
  const int64_t matrices = ElementCount(of_dst) / (rows * columns);
  for (const Dims* dims : {&of_src, &of_weights}) {  // of each operand as many, or one for all
    const int64_t own = ElementCount(*dims) / ((*dims)[rank - 2] * (*dims)[rank - 1]);
    if (own != matrices && own != 1) return std::nullopt;
  }
  const MatrixStrides from = *Stack(g.src), factor = *Stack(g.weights);
  UseOnePixel(&g.p);
  g.p.images = g.p.height = g.p.out_height = 1;
  g.p.groups = matrices;
  g.p.channels = of_src[rank - 1];
  g.p.columns = columns;
  g.p.width = g.p.out_width = rows;
  g.p.src_pixel = from[1];
  g.p.src_group = from[0];
  g.p.dst_pixel = columns;
  g.p.dst_line = g.p.dst_group = rows * columns;
  g.p.across = matrices;
  g.pack.group_stride = factor[0];
  g.pack.channel_stride = factor[1];
  g.pack.column_stride = factor[2];
  return g;
}

std::optional<Geometry> DescribeConvolution(const OpDesc& op, const Lowering& values) {
  const OpArg &src = *op.Find(DNNL_ARG_SRC), &weights = *op.Find(DNNL_ARG_WEIGHTS);
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  const Dims& in = values.shape(src.value);
  const Dims& out = values.shape(dst.value);
  const Dims& of_weights = values.shape(weights.value);
  const size_t rank = in.size();
  if (rank != 3 && rank != 4) return std::nullopt;
  Geometry g;
  g.src = ChannelsLast(in, values.dtype(src.value));
  g.dst = ChannelsLast(out, values.dtype(dst.value));
  g.weights = values.Layout(weights.value);
  if (!IsStrided(g.weights)) g.weights = Dense(of_weights, values.dtype(weights.value));
  const Dims strides = g.weights.get_strides();
  const size_t first = of_weights.size() - rank;  // 1 behind an axis of groups
  const bool is_flat = rank == 3;
  g.p.images = in[0];
  g.p.groups = first == 1 ? of_weights[0] : 1;
  g.p.channels = of_weights[first + 1];
  g.p.columns = of_weights[first];
  g.p.height = is_flat ? 1 : in[2];
  g.p.width = in[rank - 1];
  g.p.out_height = is_flat ? 1 : out[2];
  g.p.out_width = out[rank - 1];
  g.p.kernel_h = is_flat ? 1 : of_weights[first + 2];
  g.p.kernel_w = of_weights.back();
  g.p.stride_h = is_flat ? 1 : op.strides[0];
  g.p.stride_w = op.strides.back();
  g.p.dilation_h = is_flat ? 1 : op.dilates[0] + 1;  // oneDNN counts the holes
  g.p.dilation_w = op.dilates.back() + 1;
  g.p.pad_top = is_flat ? 0 : op.pad_begin[0];
  g.p.pad_left = op.pad_begin.back();
  g.p.src_pixel = in[1];
  g.p.src_row = in[1] * g.p.width;
  g.p.src_image = g.p.src_row * g.p.height;
  g.p.src_group = g.p.channels;
  g.p.dst_pixel = out[1];
  g.p.dst_line = g.p.out_width * out[1];
  g.p.dst_group = g.p.next_column = g.p.columns;
  g.p.across = g.p.groups;
  g.pack.group_stride = first == 1 ? strides[0] : 0;
  g.pack.column_stride = strides[first];
  g.pack.channel_stride = strides[first + 1];
  g.pack.row_stride = is_flat ? 0 : strides[first + 2];
  g.pack.pixel_stride = strides.back();
  return g;
}

/// A transposed convolution whose windows lie next to each other: each pixel of a window is a
/// product of all pixels with its own weights.
std::optional<Geometry> DescribeDeconvolution(const OpDesc& op, const Lowering& values) {
  const OpArg &src = *op.Find(DNNL_ARG_SRC), &weights = *op.Find(DNNL_ARG_WEIGHTS);
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  const Dims& in = values.shape(src.value);
  const Dims& out = values.shape(dst.value);
  const Dims& of_weights = values.shape(weights.value);
  auto is_zero = [](int64_t number) { return number == 0; };
  auto are_zero = [&](const Dims& dims) { return std::all_of(dims.begin(), dims.end(), is_zero); };
  if (in.size() != 4 || of_weights.size() != 4 || !are_zero(op.dilates) ||
      !are_zero(op.pad_begin) || !are_zero(op.pad_end) || (in[1] == 1 && out[1] == 1)) {
    return std::nullopt;
  }
  const int64_t down = of_weights[2], across = of_weights[3];
  if (op.strides != Dims{down, across} || out[2] != in[2] * down || out[3] != in[3] * across) {
    return std::nullopt;
  }
  Geometry g;
  g.src = ChannelsLast(in, values.dtype(src.value));
  g.dst = ChannelsLast(out, values.dtype(dst.value));
  g.weights = values.Layout(weights.value);
  if (!IsStrided(g.weights) || g.weights.get_strides()[2] != across * g.weights.get_strides()[3])
    g.weights = Dense(of_weights, values.dtype(weights.value));
  const Dims strides = g.weights.get_strides();
  g.p.images = in[0];
  g.p.groups = down * across;
  g.p.channels = in[1];
  g.p.columns = out[1];
  g.p.height = g.p.out_height = in[2];
  g.p.width = g.p.out_width = in[3];
  UseOnePixel(&g.p);
  g.p.src_pixel = in[1];
  g.p.src_row = in[1] * in[3];
  g.p.src_image = g.p.src_row * in[2];
  g.p.dst_group = out[1];
  g.p.dst_pixel = across * out[1];
  g.p.dst_down = out[3] * out[1];
  g.p.dst_line = down * g.p.dst_down;
  g.p.across = across;
  g.pack.group_stride = strides[3];
  g.pack.column_stride = strides[0];
  g.pack.channel_stride = strides[1];
  return g;
}

std::optional<Geometry> Describe(const OpDesc& op, const Lowering& values) {
  switch (op.kind) {
    case PrimitiveKind::matmul:
      return DescribeMatmul(op, values);
    case PrimitiveKind::deconvolution:
      return DescribeDeconvolution(op, values);
    default:
      return DescribeConvolution(op, values);
  }
}

/// Appends what scales the sums to the arguments, and notes its positions.
void AddScalings(const OpDesc& op, const Lowering& values, std::vector<OpArg>* args,
                 byoc_integer_params* p) {
  auto add = [&](int arg, int value, int64_t* position) {
    *position = -1;
    if (value < 0) return;
    *position = static_cast<int64_t>(args->size());
    args->push_back({arg, value, Dense(values.shape(value), values.dtype(value))});
  };
  struct Row {
    int arg;
    int64_t *scale, *zero;
  };
  const Row rows[] = {{DNNL_ARG_SRC, &p->src_scale, &p->src_zero},
                      {DNNL_ARG_WEIGHTS, &p->weights_scale, &p->weights_zero},
                      {DNNL_ARG_DST, &p->dst_scale, &p->dst_zero}};
  for (const Row& row : rows) {
    *row.scale = *row.zero = -1;
    for (const ScalingDesc& s : op.scalings) {
      if (s.arg != row.arg) continue;
      add(DNNL_ARG_ATTR_SCALES | s.arg, s.scale, row.scale);
      add(DNNL_ARG_ATTR_ZERO_POINTS | s.arg, s.zero_point, row.zero);
      if (s.arg != DNNL_ARG_WEIGHTS) continue;
      p->scales = s.scale < 0 ? 1 : ElementCount(values.shape(s.scale));
      p->zeros = s.zero_point < 0 ? 1 : ElementCount(values.shape(s.zero_point));
    }
  }
}

/// The post-ops as the kernel knows them, and their operands among the arguments. An operand per
/// element lies as the result does, and may have any dtype.
std::optional<std::vector<byoc_post_op>> AddPostOps(const OpDesc& op, const Lowering& values,
                                                    const MemoryDesc& dst,
                                                    std::vector<OpArg>* args) {
  std::vector<byoc_post_op> result;
  const Dims of_dst = dst.get_dims();
  const bool is_matmul = op.kind == PrimitiveKind::matmul;
  const size_t channels = is_matmul ? of_dst.size() - 1 : 1;
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    const PostOpDesc& post_op = op.post_ops[i];
    std::optional<byoc_post_op> described = KernelPostOp(post_op);
    if (!described || post_op.kind == PostOpDesc::Kind::kSum) return std::nullopt;
    if (post_op.kind == PostOpDesc::Kind::kBinary) {
      const Dims& dims = values.shape(post_op.value);
      const DType own = values.dtype(post_op.value);
      const std::optional<byoc_operand> form = OperandForm(dims, of_dst, channels);
      const bool is_full = form == BYOC_PER_ELEMENT;
      if (!form || !KernelDType(own) || (!is_full && own != DType::kFloat32)) return std::nullopt;
      described->form = *form;
      described->dtype = *KernelDType(own);
      described->operand = static_cast<int64_t>(args->size());
      args->push_back({PostOpArg(i), post_op.value,
                       is_full && !is_matmul ? ChannelsLast(dims, own) : Dense(dims, own)});
    }
    result.push_back(*described);
  }
  return result;
}

/// Whether tiles of Winograd's algorithm compute it: the sums, four times as large there, must fit.
bool SuitsTiles(const byoc_integer_params& p) {
  constexpr int64_t kLeastChannels = 16, kMostChannels = 900;
  return p.kernel_h == 3 && p.kernel_w == 3 && p.stride_h == 1 && p.stride_w == 1 &&
         p.dilation_h == 1 && p.dilation_w == 1 && p.groups == 1 && p.weights_zero < 0 &&
         p.channels >= kLeastChannels && p.channels <= kMostChannels;
}

Work WorkOf(const byoc_integer_params& p) {
  const int64_t panel = byoc_integer_panel(p.isa), lanes = panel / 2;
  const bool is_depthwise = byoc_is_depthwise(p.groups, p.channels, p.columns);
  const int64_t columns = is_depthwise ? 1 : byoc_round_up(p.columns, panel);
  const int64_t rows = p.is_winograd ? BYOC_INTEGER_POINTS * byoc_integer_tiles(&p)
                                     : p.images * p.out_height * p.out_width * p.groups;
  const int64_t depth = byoc_integer_depth(&p);
  Work work;
  work.products = static_cast<double>(rows) * static_cast<double>(columns * depth);
  if (p.is_winograd) {
    work.vectors = static_cast<double>(rows) * static_cast<double>(depth / panel + columns / lanes);
  }
  return work;
}

/// Describes the weights to pack; `Describe` has set where they lie.
void SetPack(const byoc_integer_params& p, bool is_signed, byoc_integer_pack_params* pack) {
  pack->isa = p.isa;
  pack->groups = p.groups;
  pack->channels = p.channels;
  pack->columns = p.columns;
  pack->kernel_h = p.kernel_h;
  pack->kernel_w = p.kernel_w;
  pack->is_winograd = p.is_winograd;
  pack->is_signed = is_signed;
}

std::optional<Candidate> OfferForm(const Candidate& primitive, const Lowering& values,
                                   bool is_winograd) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  if (!isa || !Suits(op, values)) return std::nullopt;
  std::optional<Geometry> g = Describe(op, values);
  if (!g) return std::nullopt;
  byoc_integer_params& p = g->p;
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  KernelCall call;
  call.args = {{DNNL_ARG_SRC, op.Find(DNNL_ARG_SRC)->value, g->src},
               {DNNL_ARG_WEIGHTS, op.Find(DNNL_ARG_WEIGHTS)->value, g->weights}};
  p.bias = -1;
  if (const OpArg* bias = op.Find(DNNL_ARG_BIAS)) {
    const Dims& dims = values.shape(bias->value);
    const int64_t columns = p.columns + (p.groups - 1) * p.next_column;
    if (ElementCount(dims) != columns) return std::nullopt;
    p.bias = static_cast<int64_t>(call.args.size());
    call.args.push_back({DNNL_ARG_BIAS, bias->value, Dense(dims, DType::kFloat32)});
  }
  AddScalings(op, values, &call.args, &p);
  const auto post_ops = AddPostOps(op, values, g->dst, &call.args);
  if (!post_ops) return std::nullopt;
  p.result = static_cast<int64_t>(call.args.size());
  call.args.push_back({DNNL_ARG_DST, dst.value, g->dst});

  const bool is_depthwise = byoc_is_depthwise(p.groups, p.channels, p.columns);
  if (is_depthwise && (op.kind == PrimitiveKind::matmul || p.weights_zero >= 0 ||
                       p.kernel_h * p.kernel_w > static_cast<int64_t>(BYOC_INTEGER_TAPS))) {
    return std::nullopt;
  }
  if (is_winograd && !SuitsTiles(p)) return std::nullopt;
  p.is_winograd = is_winograd;
  p.isa = *isa;
  p.src_dtype = *KernelDType(values.dtype(call.args[0].value));
  p.dst_dtype = *KernelDType(values.dtype(dst.value));
  p.rows = is_depthwise ? static_cast<int64_t>(BYOC_INTEGER_RUN)
                        : byoc_integer_block(&p, values.machine().cache_bytes);
  p.post_ops = static_cast<int64_t>(post_ops->size());
  p.threads = values.machine().threads;
  call.kernel = &kInteger;
  Append(p, &call.params);
  for (const byoc_post_op& post_op : *post_ops) Append(post_op, &call.params);
  call.scratch_bytes = p.threads * byoc_integer_thread_bytes(&p);

  const bool is_signed = values.dtype(call.args[1].value) == DType::kInt8;
  SetPack(p, is_signed, &g->pack);
  call.packing = PackingOf(kIntegerPack, g->pack, byoc_integer_packed_bytes(&g->pack));

  Candidate candidate{
      op, {}, KernelImpl(is_winograd ? "integer_winograd" : "integer", p.isa), std::move(call), {}};
  candidate.work = WorkOf(p);
  return candidate;
}

}  // namespace

std::optional<Candidate> OfferInteger(const Candidate& primitive, const Lowering& values) {
  return OfferForm(primitive, values, /*is_winograd=*/false);
}

std::optional<Candidate> OfferIntegerWinograd(const Candidate& primitive, const Lowering& values) {
  return OfferForm(primitive, values, /*is_winograd=*/true);
}

}  // namespace tvm_byoc_dnnl
