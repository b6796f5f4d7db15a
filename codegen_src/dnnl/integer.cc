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

/// Whether the kernel reads operands and writes results of a dtype.
bool IsTaken(DType dtype) {
  return IsByte(dtype) || dtype == DType::kInt32 || dtype == DType::kFloat32;
}

bool Suits(const OpDesc& op, const Lowering& values) {
  if (!IsProduct(op.kind)) return false;
  const OpArg& src = *op.Find(DNNL_ARG_SRC);
  const OpArg* bias = op.Find(DNNL_ARG_BIAS);
  return IsByte(values.dtype(src.value)) &&
         IsByte(values.dtype(op.Find(DNNL_ARG_WEIGHTS)->value)) &&
         IsTaken(values.dtype(op.Find(DNNL_ARG_DST)->value)) &&
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
};

/// Where the pixels of an image lie whose channels are innermost.
byoc_strides ChannelsLastStrides(const Dims& image) {
  const int64_t row = image.back() * image[1];
  return {ElementCount(image) / image[0], row, image[1], 0, image[1]};
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
  byoc_convolution* of = &g.p.of;
  *of = ConvolutionOf(op, {rows, of_src[rank - 1]}, {rows, columns}, values.machine());
  of->groups = matrices;
  of->src.pixel = from[1];
  of->dst = ChannelsLastStrides({1, columns, rows});
  g.p.src_group = from[0];
  g.p.dst_group = rows * columns;
  g.p.across = matrices;
  of->weights = {factor[0], factor[2], factor[1], 0};
  return g;
}

/// Of images whose channels are innermost.
Geometry DescribeImages(const OpDesc& op, const Lowering& values) {
  const OpArg &src = *op.Find(DNNL_ARG_SRC), &dst = *op.Find(DNNL_ARG_DST);
  const Dims &in = values.shape(src.value), &out = values.shape(dst.value);
  Geometry g;
  g.src = ChannelsLast(in, values.dtype(src.value));
  g.dst = ChannelsLast(out, values.dtype(dst.value));
  g.p.of = ConvolutionOf(op, in, out, values.machine());
  g.weights = WeightsOf(op, values, &g.p.of.weights);
  g.p.of.src = ChannelsLastStrides(in);
  g.p.of.dst = ChannelsLastStrides(out);
  return g;
}

std::optional<Geometry> DescribeConvolution(const OpDesc& op, const Lowering& values) {
  const size_t rank = values.shape(op.Find(DNNL_ARG_SRC)->value).size();
  if (rank != 3 && rank != 4) return std::nullopt;
  Geometry g = DescribeImages(op, values);
  g.p.src_group = g.p.of.channels;
  g.p.dst_group = g.p.next_column = g.p.of.outputs;
  g.p.across = g.p.of.groups;
  return g;
}

/// A transposed convolution whose windows lie next to each other: each pixel of a window is a
/// product of all pixels with its own weights.
std::optional<Geometry> DescribeDeconvolution(const OpDesc& op, const Lowering& values) {
  const Dims& in = values.shape(op.Find(DNNL_ARG_SRC)->value);
  const Dims& out = values.shape(op.Find(DNNL_ARG_DST)->value);
  const Dims& of_weights = values.shape(op.Find(DNNL_ARG_WEIGHTS)->value);
  if (in.size() != 4 || of_weights.size() != 4 || !AllAre(0, op.dilates) ||
      !AllAre(0, op.pad_begin) || !AllAre(0, op.pad_end) || (in[1] == 1 && out[1] == 1)) {
    return std::nullopt;
  }
  const int64_t down = of_weights[2], across = of_weights[3];
  if (op.strides != Dims{down, across} || out[2] != in[2] * down || out[3] != in[3] * across) {
    return std::nullopt;
  }
  Geometry g = DescribeImages(op, values);
  byoc_convolution* of = &g.p.of;  // of one pixel each
  of->groups = down * across;
  of->out_height = in[2];
  of->out_width = in[3];
  of->kernel_height = of->kernel_width = of->stride_y = of->stride_x = 1;
  of->dst = {0, down * out[3] * out[1], across * out[1], 0, out[1]};
  g.p.dst_group = out[1];
  g.p.dst_down = out[3] * out[1];
  g.p.across = across;
  std::swap(of->weights.group, of->weights.tap);
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
                 byoc_integer_places* at) {
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
  const Row rows[] = {{DNNL_ARG_SRC, &at->src_scale, &at->src_zero},
                      {DNNL_ARG_WEIGHTS, &at->weights_scale, &at->weights_zero},
                      {DNNL_ARG_DST, &at->dst_scale, &at->dst_zero}};
  for (const Row& row : rows) {
    *row.scale = *row.zero = -1;
    for (const ScalingDesc& s : op.scalings) {
      if (s.arg != row.arg) continue;
      add(DNNL_ARG_ATTR_SCALES | s.arg, s.scale, row.scale);
      add(DNNL_ARG_ATTR_ZERO_POINTS | s.arg, s.zero_point, row.zero);
      if (s.arg != DNNL_ARG_WEIGHTS) continue;
      at->scales = s.scale < 0 ? 1 : ElementCount(values.shape(s.scale));
      at->zeros = s.zero_point < 0 ? 1 : ElementCount(values.shape(s.zero_point));
    }
  }
}

/// An operand per element lies as the result does, and may have any dtype.
Operands OperandsOf(const OpDesc& op, const Lowering& values, const Dims& dst) {
  Operands operands;
  const bool is_matmul = op.kind == PrimitiveKind::matmul;
  if (is_matmul) operands.channels = dst.size() - 1;
  operands.place = [&](const PostOpDesc& post_op, const MemoryDesc&, byoc_post_op* described) {
    const DType dtype = values.dtype(post_op.value);
    described->dtype = ToKernels(dtype);
    return IsTaken(dtype) && post_op.kind == PostOpDesc::Kind::kBinary;
  };
  for (const PostOpDesc& post_op : op.post_ops) {
    operands.layouts.emplace_back();
    if (post_op.value < 0) continue;
    const Dims& dims = values.shape(post_op.value);
    const DType dtype = values.dtype(post_op.value);
    operands.layouts.back() =
        dims == dst && !is_matmul ? ChannelsLast(dims, dtype) : Dense(dims, dtype);
  }
  return operands;
}

/// Whether tiles of Winograd's algorithm compute it: the sums, four times as large there, must fit.
bool SuitsTiles(const byoc_integer_params& p) {
  constexpr int64_t kMostChannels = 900;
  return p.of.kernel_height == 3 && p.of.kernel_width == 3 && p.of.stride_y == 1 &&
         p.of.stride_x == 1 && p.of.dilation_y == 1 && p.of.dilation_x == 1 && p.of.groups == 1 &&
         p.at.weights_zero < 0 && p.of.channels <= kMostChannels;
}

Work WorkOf(const byoc_integer_params& p) {
  const int64_t panel = byoc_panel(p.of.isa), lanes = panel / 2;
  const int64_t columns = byoc_is_depthwise(&p.of) ? 1 : byoc_round_up(p.of.outputs, panel);
  const int64_t rows = p.is_winograd ? BYOC_INTEGER_POINTS * byoc_integer_tiles(&p)
                                     : p.of.images * p.of.out_height * p.of.out_width * p.of.groups;
  const int64_t depth = byoc_integer_depth(&p);
  Work work;
  work.products = static_cast<double>(rows) * static_cast<double>(columns * depth);
  if (p.is_winograd) {
    work.vectors = static_cast<double>(rows) * static_cast<double>(depth / panel + columns / lanes);
  }
  return work;
}

std::optional<Candidate> OfferForm(const Candidate& primitive, const Lowering& values,
                                   bool is_winograd) {
  const OpDesc& op = primitive.op;
  if (!values.isa().Vectors() || !Suits(op, values)) return std::nullopt;
  std::optional<Geometry> g = Describe(op, values);
  if (!g) return std::nullopt;
  byoc_integer_params& p = g->p;
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  KernelFrame frame;
  frame.args = {{DNNL_ARG_SRC, op.Find(DNNL_ARG_SRC)->value, g->src},
                {DNNL_ARG_WEIGHTS, op.Find(DNNL_ARG_WEIGHTS)->value, g->weights}};
  p.at.bias = -1;
  if (const OpArg* bias = op.Find(DNNL_ARG_BIAS)) {
    const Dims& dims = values.shape(bias->value);
    const int64_t columns = p.of.outputs + (p.of.groups - 1) * p.next_column;
    if (ElementCount(dims) != columns) return std::nullopt;
    p.of.has_bias = 1;
    p.at.bias = static_cast<int64_t>(frame.args.size());
    frame.args.push_back({DNNL_ARG_BIAS, bias->value, Dense(dims, DType::kFloat32)});
  }
  AddScalings(op, values, &frame.args, &p.at);
  const Dims& of_dst = values.shape(dst.value);
  auto post_ops = DescribePostOps(op.post_ops, OperandsOf(op, values, of_dst), of_dst, &frame.args);
  if (!post_ops) return std::nullopt;
  frame.post_ops = std::move(*post_ops);
  p.at.result = static_cast<int64_t>(frame.args.size());
  frame.args.push_back({DNNL_ARG_DST, dst.value, g->dst});

  const bool is_depthwise = byoc_is_depthwise(&p.of);
  if (is_depthwise && (op.kind == PrimitiveKind::matmul || p.at.weights_zero >= 0 ||
                       byoc_taps(&p.of) > static_cast<int64_t>(BYOC_INTEGER_TAPS))) {
    return std::nullopt;
  }
  const auto channels = static_cast<double>(p.of.channels);
  if (is_winograd && !(SuitsTiles(p) && channels >= values.machine().Limit("integer_tiles")))
    return std::nullopt;
  p.is_winograd = is_winograd;
  p.has_vnni = values.isa().HasExactIntegerProducts();
  p.src_dtype = ToKernels(values.dtype(frame.args[0].value));
  p.weights_dtype = ToKernels(values.dtype(frame.args[1].value));
  p.dst_dtype = ToKernels(values.dtype(dst.value));
  p.rows = is_depthwise ? static_cast<int64_t>(BYOC_INTEGER_RUN)
                        : byoc_integer_block(&p, values.machine().PartOfCache("integer_block"));
  p.of.post_ops = static_cast<int64_t>(frame.post_ops.size());
  const int64_t results = p.of.images * p.of.out_height * p.of.out_width * p.of.groups;
  p.of.threads =
      values.machine().ThreadsFor(results * p.of.outputs * byoc_integer_depth(&p), "wake_integer");
  KernelCall call =
      CallOf(kInteger, kIntegerPack, p, frame, p.of.threads * byoc_integer_thread_bytes(&p),
             byoc_integer_packed_bytes(&p));
  return Candidate{op,
                   {},
                   KernelImpl(is_winograd ? "integer_winograd" : "integer", p.of.isa),
                   std::move(call),
                   WorkOf(p)};
}

}  // namespace

std::vector<Candidate> OfferInteger(const Candidate& primitive, const Lowering& values) {
  std::vector<Candidate> offered;
  for (bool is_winograd : {false, true}) {
    if (auto candidate = OfferForm(primitive, values, is_winograd))
      offered.push_back(std::move(*candidate));
  }
  return offered;
}

}  // namespace tvm_byoc_dnnl
