// SPDX-License-Identifier: Apache-2.0
// Attention by a kernel of ours, which keeps the scores in the cache, or by two products and a
// softmax: whichever costs less. Attention over a cache of keys and values is always the kernel.
// And heads that turn by the angles of their positions before.
#include <algorithm>

#include "dnnl/execute.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_attention.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kAttention = {"attention", "attention", byoc_attention};
constexpr Kernel kRotary = {"rotary", "copy", byoc_rotary};

constexpr int kBias = 3;  // the input

bool IsCached(const NodeView& n) { return n.node.kind == Kind::kCachedAttention; }

bool HasBias(const NodeView& n) { return !IsCached(n) && n.OwnInputs() > kBias; }

/// Rank 3 has one head.
Dims WithHeads(Dims dims) {
  if (dims.size() == 3) dims.insert(dims.begin() + 1, 1);
  return dims;
}

/// Strides as the kernel takes them; 0 along the axes that an operand has only one element of.
byoc_attention_strides StridesOf(const MemoryDesc& md) {
  const Dims dims = WithHeads(md.get_dims());
  const Dims strides = WithHeads(md.get_strides());
  auto of = [&](int axis) { return dims[axis] == 1 ? 0 : strides[axis]; };
  return {of(0), of(1), of(2)};
}

/// The heads of a row side by side, which is the order of the tensor that joins them.
MemoryDesc ResultLayout(const NodeView& n) {
  const Dims& shape = n.OutShape();
  return n.OutRows(shape.size() == 3 ? Dense(shape, DType::kFloat32)
                                     : Ordered(shape, DType::kFloat32, {0, 2, 1, 3}));
}

byoc_attention_params SizesOf(const NodeView& n) {
  const Dims query = WithHeads(n.Shape(0)), key = WithHeads(n.Shape(1));
  byoc_attention_params p{};
  p.isa = n.lowering.isa().Vectors().value_or(BYOC_AVX2);
  p.batch = query[0];
  p.heads = query[1];
  p.key_heads = key[1];
  p.queries = query[2];
  p.keys = key[2];
  p.key.width = query[3];
  p.value.width = n.Shape(2).back();
  p.key.dtype = ToKernels(n.DTypeOf(1));
  p.value.dtype = ToKernels(n.DTypeOf(2));
  p.rule.scale = n.a.scale;
  p.rule.softcap = n.a.softcap;
  p.rule.has_bias = HasBias(n);
  p.rule.no_nan = n.a.alg == "no_nan";
  p.threads = n.lowering.machine().threads;
  return p;
}

/// The work of both ways: products, for which keys and values must be read or packed.
Candidate Described(const byoc_attention_params& p, const char* impl) {
  Candidate candidate;
  candidate.impl = impl;
  const auto width = static_cast<double>(p.key.width + p.value.width);
  const auto keys = static_cast<double>(p.batch) * static_cast<double>(p.keys);
  candidate.work.products = keys * static_cast<double>(p.heads * p.queries) * width;
  candidate.work.vectors = keys * static_cast<double>(p.key_heads) * width;
  return candidate;
}

/// The kernel reads keys and values where they lie for a few rows, and packs them for more.
Candidate DescribeKernel(const NodeView& n, const byoc_attention_params& p) {
  const bool few = byoc_attention_rows(&p) <= BYOC_ATTENTION_FEW;
  Candidate candidate = Described(p, few ? "attention_few" : "attention");
  for (int i = 0; i < n.OwnInputs(); ++i) {
    const MemoryDesc md = n.DenseRows(n.In(i));
    if (!SameLayout(md, n.lowering.Layout(n.In(i))))
      candidate.work.reordered += static_cast<double>(md.get_size());
  }
  return candidate;
}

/// The products need keys and values for each head.
Candidate DescribeSteps(const byoc_attention_params& p) {
  Candidate candidate = Described(p, "attention_steps");
  if (p.heads != p.key_heads)
    candidate.work.reordered =
        4 * candidate.work.vectors * static_cast<double>(p.heads / p.key_heads);
  return candidate;
}

void EmitKernel(const NodeView& n, byoc_attention_params p) {
  Lowering& l = n.lowering;
  const std::optional<int> length = IsCached(n) ? std::nullopt : l.GrowingLength();
  std::vector<OpArg> args = {{DNNL_ARG_SRC_0, n.In(0), n.DenseRows(n.In(0))},
                             {DNNL_ARG_SRC_1, n.In(1), n.DenseRows(n.In(1))},
                             {DNNL_ARG_SRC_2, n.In(2), n.DenseRows(n.In(2))}};
  p.query = StridesOf(args[0].md);
  p.key.strides = StridesOf(args[1].md);
  p.value.strides = StridesOf(args[2].md);
  if (HasBias(n)) {
    int bias = n.In(kBias);
    Dims shape = n.Shape(kBias);
    if (shape.back() != p.keys) {
      shape.back() = p.keys;
      bias = Expanded(l, bias, shape);
    }
    args.push_back({DNNL_ARG_BIAS, bias, n.DenseRows(bias)});
    p.bias = StridesOf(args.back().md);
  }
  if (length) {
    p.reach.has_length = 1;
    args.push_back({DNNL_ARG_SRC_3, *length, RawLayout({1}, DType::kInt64)});
  }
  if (IsCached(n)) {
    p.reach.has_starts = 1;
    args.push_back({DNNL_ARG_SRC_3, n.In(3), RawLayout(n.Shape(3), DType::kInt64)});
    p.reach.window = n.a.window;
    p.rule.has_sinks = n.OwnInputs() > 4;
    if (p.rule.has_sinks) args.push_back(n.AsDense(DNNL_ARG_BIAS, 4));
  }
  args.push_back({DNNL_ARG_DST, n.output, ResultLayout(n)});
  p.dst = StridesOf(args.back().md);
  l.EmitKernel(StepOf(kAttention, KernelImpl("attention", p.isa), p), args,
               static_cast<int64_t>(byoc_attention_scratch_bytes(&p)));
}

/// Keys or values with a head for each of the queries'.
int ForEachHead(const NodeView& n, int value, int64_t heads) {
  Lowering& l = n.lowering;
  const Dims shape = l.shape(value);
  if (shape.size() == 3 || shape[1] == heads) return value;
  const int apart = l.Reshaped(value, {shape[0], shape[1], 1, shape[2], shape[3]});
  const int wide = Expanded(l, apart, {shape[0], shape[1], heads / shape[1], shape[2], shape[3]});
  return l.Reshaped(wide, {shape[0], heads, shape[2], shape[3]});
}

PostOp Eltwise(const char* alg, double alpha) {
  PostOp op;
  op.alg = alg;
  op.alpha = alpha;
  return op;
}

/// softmax(scale * query x key' + bias) x value, each by the implementation that is chosen for it.
void EmitSteps(const NodeView& n) {
  Lowering& l = n.lowering;
  const Dims& out = n.OutShape();
  const auto rank = static_cast<int64_t>(out.size());
  const int64_t heads = WithHeads(n.Shape(0))[1];
  const int key = ForEachHead(n, n.In(1), heads), value = ForEachHead(n, n.In(2), heads);
  Dims axes, transposed = l.shape(key), shape = out;
  for (int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
  std::swap(axes[rank - 2], axes[rank - 1]);
  std::swap(transposed[rank - 2], transposed[rank - 1]);
  shape.back() = transposed.back();
  auto made = [&](const Dims& dims) { return l.NewValue(dims, DType::kFloat32, false); };

  Node permute = NewNode(Kind::kPermute, {key}, made(transposed));
  permute.attrs.axes = axes;
  Node scores = NewNode(Kind::kMatmul, {n.In(0), permute.output}, made(shape));
  const double cap = n.a.softcap, scale = cap == 0 ? n.a.scale : n.a.scale / cap;
  if (scale != 1) scores.post_ops.push_back(Eltwise("linear", scale));
  if (cap != 0) {
    scores.post_ops.push_back(Eltwise("tanh", 0));
    scores.post_ops.push_back(Eltwise("linear", cap));
  }
  if (HasBias(n)) {
    PostOp add;
    add.binary = true;
    add.alg = "add";
    add.input = static_cast<int>(scores.inputs.size());
    scores.inputs.push_back(n.In(kBias));
    scores.scalings.emplace_back();
    scores.post_ops.push_back(add);
  }
  Node shares = NewNode(Kind::kSoftmax, {scores.output}, made(shape));
  shares.attrs.alg = "accurate";
  shares.attrs.axis = rank - 1;
  if (n.a.alg == "no_nan") shares.post_ops.push_back(Eltwise("relu_of_numbers", 0));
  const Node result = NewNode(Kind::kMatmul, {shares.output, value}, n.output);
  l.LowerInSteps({permute, scores, shares, result});
}

}  // namespace

static bool HasKernel(const NodeView& n, const byoc_attention_params& p) {
  return n.lowering.isa().Vectors().has_value() && p.key.width > 0 && p.keys > 0 && p.key_heads > 0;
}

static void LowerAttention(const NodeView& n) {
  const byoc_attention_params p = SizesOf(n);
  const Lowering& l = n.lowering;
  const bool is_kernel =
      HasKernel(n, p) && (l.GrowingLength() || byoc_attention_is_copied(&p) ||
                          l.Cost(DescribeKernel(n, p)) < l.Cost(DescribeSteps(p)));
  is_kernel ? EmitKernel(n, p) : EmitSteps(n);
}

/// There is no other way to compute it than by the kernel.
static void LowerCachedAttention(const NodeView& n) {
  const byoc_attention_params p = SizesOf(n);
  if (!HasKernel(n, p)) n.lowering.FailUnsupported();
  EmitKernel(n, p);
}

/// A kernel that any CPU has.
static void LowerRotary(const NodeView& n) {
  const Dims& shape = n.OutShape();
  const Dims& angles = n.Shape(1);
  const MemoryDesc src = n.DenseRows(n.In(0)), dst = ResultLayout(n);
  byoc_rotary_params p{};
  p.batch = shape[0];
  p.heads = shape[1];
  p.rows = shape[2];
  p.width = shape[3];
  p.pairs = angles[2];
  p.neighbours = n.a.alg == "neighbours" ? 1 : 0;
  p.angles = angles[0] == 1 ? 0 : p.rows * p.pairs;
  const Dims from = src.get_strides(), to = dst.get_strides();
  std::copy_n(from.begin(), 3, p.src);
  std::copy_n(to.begin(), 3, p.dst);
  n.lowering.EmitKernel(StepOf(kRotary, kRotary.name, p), {{DNNL_ARG_SRC, n.In(0), src},
                                                           n.AsDense(DNNL_ARG_SRC_1, 1),
                                                           n.AsDense(DNNL_ARG_SRC_2, 2),
                                                           {DNNL_ARG_DST, n.output, dst}});
}

bool RunAttention(byoc_attention_params params, void* const* data, int threads) {
  const std::optional<byoc_isa> isa = Isa().Vectors();
  if (!isa) return false;
  params.isa = *isa;
  params.threads = threads;
  const AlignedBuffer scratch(byoc_attention_scratch_bytes(&params));
  char error[BYOC_ERROR_BYTES] = "";
  const auto* numbers = reinterpret_cast<const int64_t*>(&params);
  Check(byoc_attention(numbers, data, scratch.data(), threads, error), error);
  return true;
}

const KindRow kAttentionRow = {nullptr, LowerAttention};
const KindRow kCachedAttentionRow = {nullptr, LowerCachedAttention};
const KindRow kRotaryRow = {nullptr, LowerRotary};

}  // namespace tvm_byoc_dnnl
