// SPDX-License-Identifier: Apache-2.0
// Kinds that are a primitive each, which is described for several layouts of the source.
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeEltwise(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::eltwise;
  op.operation() = OperationOf(Kind::kEltwise, n.a.alg, n.a.alpha, n.a.beta);
  return n.OnEach(op, {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0)});
}

const KindRow kEltwiseRow = {DescribeEltwise, nullptr};

static std::vector<OpDesc> DescribePRelu(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::prelu;
  return n.OnEach(op, {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0)},
                  {n.AsAny(DNNL_ARG_WEIGHTS, 1)});
}

static void LowerPRelu(const NodeView& n) {
  // oneDNN has an implementation for weights per channel. One slope for all, or any other
  // broadcast, is expanded to that.
  Lowering& l = n.lowering;
  const Dims& shape = n.Shape(0);
  Dims weights = shape;
  if (shape.size() >= 2 && ElementCount(n.Shape(1)) == 1) {
    weights.assign(shape.size(), 1);
    weights[1] = shape[1];
  }
  int expanded = Expanded(l, n.In(1), weights);
  OpDesc op;
  op.kind = dnnl::primitive::kind::prelu;
  op.args = {n.AsDense(DNNL_ARG_SRC, 0),
             {DNNL_ARG_WEIGHTS, expanded, AnyLayout(weights, l.dtype(expanded))},
             n.OutAny()};
  EmitOrFail(l, {op});
}

const KindRow kPReluRow = {DescribePRelu, LowerPRelu};

static std::vector<OpDesc> DescribeMatmul(const NodeView& n) {
  const MemoryDesc& src = n.lowering.Layout(n.In(0));
  const MemoryDesc& weights = n.lowering.Layout(n.In(1));
  // Constant weights are packed once, so the primitive chooses; others are read as they lie
  // (transposed, say) if it can.
  bool packed = n.lowering.IsConstant(n.In(1));
  auto describe = [&](OpArg source, OpArg second) {
    OpDesc op;
    op.kind = dnnl::primitive::kind::matmul;
    op.preferred = n.a.alg;
    op.args = {std::move(source), std::move(second)};
    if (n.OwnInputs() == 3) op.args.push_back(n.AsDense(DNNL_ARG_BIAS, 2));
    op.args.push_back(n.OutAny());
    return op;
  };
  OpArg any = n.AsAny(DNNL_ARG_WEIGHTS, 1);
  return {
      describe(n.As(src, DNNL_ARG_SRC, 0), packed ? any : n.As(weights, DNNL_ARG_WEIGHTS, 1)),
      describe(n.AsDense(DNNL_ARG_SRC, 0), packed ? any : n.AsDense(DNNL_ARG_WEIGHTS, 1)),
      describe(n.AsAny(DNNL_ARG_SRC, 0), any),
  };
}

const KindRow kMatmulRow = {DescribeMatmul, nullptr};

static std::vector<OpDesc> DescribePooling(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::pooling;
  op.alg = ToDnnl(Kind::kPooling, n.a.alg);
  op.kernel = n.a.kernel;
  n.SetWindow(&op);
  return n.OnEach(op, n.Layouts(DNNL_ARG_SRC, 0));
}

const KindRow kPoolingRow = {DescribePooling, nullptr};

static std::vector<OpDesc> DescribeResampling(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::resampling;
  op.alg = ToDnnl(Kind::kResampling, n.a.alg);
  return n.OnEach(op, n.Layouts(DNNL_ARG_SRC, 0));
}

const KindRow kResamplingRow = {DescribeResampling, nullptr};

static std::vector<OpDesc> DescribeSoftmax(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::softmax;
  op.alg = ToDnnl(Kind::kSoftmax, n.a.alg);
  op.axis = n.a.axis;
  Dims order;  // the axis innermost
  for (int64_t axis = 0; axis < static_cast<int64_t>(n.Shape(0).size()); ++axis) {
    if (axis != n.a.axis) order.push_back(axis);
  }
  order.push_back(n.a.axis);
  return n.OnEach(op, {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0),
                       n.As(Ordered(n.Shape(0), n.DTypeOf(0), order), DNNL_ARG_SRC, 0)});
}

const KindRow kSoftmaxRow = {DescribeSoftmax, nullptr};

static std::vector<OpDesc> DescribeLayerNormalization(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::layer_normalization;
  if (n.node.kind == Kind::kRmsNormalization) op.preferred = "rms";
  op.epsilon = static_cast<float>(n.a.epsilon);
  op.args = {n.AsDense(DNNL_ARG_SRC, 0)};
  if (n.OwnInputs() > 1) {
    op.flags |= dnnl_use_scale;
    op.args.push_back(n.AsDense(DNNL_ARG_SCALE, 1));
  }
  if (n.OwnInputs() > 2) {
    op.flags |= dnnl_use_shift;
    op.args.push_back(n.AsDense(DNNL_ARG_SHIFT, 2));
  }
  op.args.push_back(n.OutAny());
  return {op};
}

const KindRow kLayerNormalizationRow = {DescribeLayerNormalization, nullptr};

/// Without our kernel, which takes the place of the primitive.
static void LowerRmsNormalization(const NodeView& n) {
  Lowering& l = n.lowering;
  const Dims& shape = n.OutShape();
  Dims one(shape.size(), 1), of_rows = shape;
  of_rows.back() = 1;
  one.back() = shape.back();
  auto made = [&](const Dims& dims) { return l.NewValue(dims, DType::kFloat32, false); };
  auto eltwise = [&](const char* alg, int from, const Dims& dims, double alpha, double beta) {
    Node node = NewNode(Kind::kEltwise, {from}, made(dims));
    node.attrs.alg = alg;
    node.attrs.alpha = alpha;
    node.attrs.beta = beta;
    return node;
  };
  const Node squares = eltwise("square", n.In(0), shape, 0, 0);
  Node mean = NewNode(Kind::kReduction, {squares.output}, made(of_rows));
  mean.attrs.alg = "mean";
  mean.attrs.p = 1;
  const Node sum = eltwise("linear", mean.output, of_rows, 1, n.a.epsilon);
  const Node inverse = eltwise("pow", sum.output, of_rows, 1, -0.5);
  Node result = NewNode(Kind::kBinary, {n.In(0), inverse.output}, n.output);
  result.attrs.alg = "mul";
  if (n.OwnInputs() == 1) return l.LowerInSteps({squares, mean, sum, inverse, result});
  result.output = made(shape);
  const Node scale = NewNode(Kind::kReshape, {n.In(1)}, l.NewValue(one, n.DTypeOf(1), false));
  Node scaled = NewNode(Kind::kBinary, {result.output, scale.output}, n.output);
  scaled.attrs.alg = "mul";
  l.LowerInSteps({squares, mean, sum, inverse, result, scale, scaled});
}

const KindRow kRmsNormalizationRow = {DescribeLayerNormalization, LowerRmsNormalization};

static std::vector<OpDesc> DescribeLrn(const NodeView& n) {
  using Tag = dnnl::memory::format_tag;
  OpDesc op;
  op.kind = dnnl::primitive::kind::lrn;
  op.alg = ToDnnl(Kind::kLrn, n.a.alg);
  op.local_size = n.a.local_size;
  op.alpha = static_cast<float>(n.a.alpha);
  op.beta = static_cast<float>(n.a.beta);
  op.k = static_cast<float>(n.a.k);
  const Dims& shape = n.Shape(0);
  const DType dtype = n.DTypeOf(0);
  std::vector<OpArg> sources = {n.AsIs(DNNL_ARG_SRC, 0),
                                n.As(ChannelsLast(shape, dtype), DNNL_ARG_SRC, 0)};
  if (shape.size() == 4) {  // which of them has an implementation depends on the instruction set
    for (Tag tag : {Tag::nChw16c, Tag::nChw8c})
      sources.push_back(n.As(MemoryDesc(shape, ToDnnl(dtype), tag), DNNL_ARG_SRC, 0));
  }
  sources.push_back(n.AsDense(DNNL_ARG_SRC, 0));
  return n.OnEach(op, sources);
}

const KindRow kLrnRow = {DescribeLrn, nullptr};

namespace {

std::vector<OpDesc> Describe(const NodeView& n, dnnl::primitive::kind kind, dnnl::algorithm alg) {
  OpDesc op;
  op.kind = kind;
  op.alg = alg;
  op.preferred = n.a.alg;
  n.SetWindow(&op);
  op.args = {n.AsAny(DNNL_ARG_SRC, 0), n.AsAny(DNNL_ARG_WEIGHTS, 1)};
  if (n.OwnInputs() == 3) op.args.push_back(n.AsDense(DNNL_ARG_BIAS, 2));
  op.args.push_back(n.OutAny());
  return {op};
}

}  // namespace

/// Where a group has few channels, oneDNN answers the question for any layout with a product of an
/// unfolded source. For AVX-512 it also has a direct convolution, but only if it is asked for
/// channels last; for AVX2 there is a kernel of ours, which writes channels last. So it does from
/// pictures, for which oneDNN writes blocks of channels that what follows seldom reads.
static std::vector<OpDesc> DescribeConvolution(const NodeView& n) {
  std::vector<OpDesc> ops =
      Describe(n, dnnl::primitive::kind::convolution, dnnl::algorithm::convolution_direct);
  const Dims& weights = n.Shape(1);
  const std::optional<byoc_isa> isa = n.lowering.isa().Vectors();
  const bool is_thin = IsThin(weights, n.OutShape().size(), n.lowering.machine());
  if (is_thin && n.DTypeOf(0) == DType::kFloat32 && isa) {
    OpDesc channels_last = ops.front();
    if (*isa == BYOC_AVX512)
      channels_last.args.front() = n.As(ChannelsLast(n.Shape(0), n.DTypeOf(0)), DNNL_ARG_SRC, 0);
    channels_last.args.back().md = ChannelsLast(n.OutShape(), n.OutDType());
    ops.push_back(std::move(channels_last));
  }
  return ops;
}

/// A depthwise convolution of shuffled channels: the source is convolved as it is, by weights in
/// the order before the shuffle, and the result is shuffled. The kernel for groups reads what is
/// shuffled as fast as what is not (direct.cc).
static bool ShuffleBehind(const NodeView& n) {
  Lowering& l = n.lowering;
  const std::optional<Shuffled> shuffled = l.ShuffleOf(n.In(0));
  const Dims& weights = n.Shape(1);
  const bool is_depthwise =
      weights.size() == n.OutShape().size() + 1 && weights[1] * weights[2] == 1;
  if (!shuffled || !l.IsReadOnce(n.In(0)) || !is_depthwise || n.OutDType() != DType::kFloat32)
    return false;
  const bool has_operands = n.node.inputs.size() > static_cast<size_t>(n.OwnInputs());
  if (has_operands || n.DTypeOf(0) != DType::kFloat32) return false;
  Node convolution = n.node;
  convolution.inputs[0] = shuffled->source;
  std::vector<Node> nodes;
  for (int i = 1; i < n.OwnInputs(); ++i) {
    if (!l.IsConstant(n.In(i)) || n.DTypeOf(i) != DType::kFloat32) return false;
    const int before = l.NewValue(n.Shape(i), n.DTypeOf(i), /*constant=*/true);
    nodes.push_back(NewNode(Kind::kShuffle, {n.In(i)}, before));
    nodes.back().attrs.group_size = n.Shape(i)[0] / shuffled->group_size;  // the inverse
    convolution.inputs[i] = before;
  }
  convolution.output = l.NewValue(n.OutShape(), n.OutDType(), /*constant=*/false);
  nodes.push_back(NewNode(Kind::kShuffle, {convolution.output}, n.output));
  nodes.back().attrs.axis = 1;
  nodes.back().attrs.group_size = shuffled->group_size;
  nodes.insert(nodes.end() - 1, std::move(convolution));
  l.LowerInSteps(nodes);
  return true;
}

static std::vector<OpDesc> DescribeDeconvolution(const NodeView& n) {
  return Describe(n, dnnl::primitive::kind::deconvolution, dnnl::algorithm::deconvolution_direct);
}

const KindRow kConvolutionRow = {DescribeConvolution, nullptr, nullptr, ShuffleBehind};

const KindRow kDeconvolutionRow = {DescribeDeconvolution, nullptr};

}  // namespace tvm_byoc_dnnl
