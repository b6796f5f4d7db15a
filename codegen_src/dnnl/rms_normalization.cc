// SPDX-License-Identifier: Apache-2.0
// Rows divided by the root of the mean of their squares: our kernel, or its steps without AVX2.
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_normalize.h"

namespace tvm_byoc_dnnl {
namespace {

void EmitSteps(const NodeView& n) {
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

}  // namespace

static void LowerRmsNormalization(const NodeView& n) {
  const std::optional<byoc_isa> isa = n.lowering.isa().Vectors();
  if (!isa) return EmitSteps(n);
  byoc_normalize_params p{};
  p.isa = *isa;
  p.form = BYOC_RMS;
  p.columns = n.OutShape().back();
  p.rows = ElementCount(n.OutShape()) / p.columns;
  p.src_dtype = p.dst_dtype = BYOC_F32;
  p.src_scale = p.dst_scale = p.dst_zero = p.beta = -1;
  p.gamma = n.OwnInputs() > 1 ? 1 : -1;
  p.result = n.OwnInputs();
  p.epsilon = n.a.epsilon;
  p.threads = n.lowering.machine().threads;
  Step step;
  step.impl = KernelImpl("normalize", p.isa);
  step.op.kind = dnnl::primitive::kind::layer_normalization;  // for reports
  step.kernel = &kNormalize;
  Append(p, &step.params);
  std::vector<OpArg> args = {n.AsDense(DNNL_ARG_SRC, 0)};
  if (n.OwnInputs() > 1) args.push_back(n.AsDense(DNNL_ARG_SCALE, 1));
  args.push_back({DNNL_ARG_DST, n.output, Dense(n.OutShape(), DType::kFloat32)});
  n.lowering.EmitKernel(std::move(step), args, p.threads * byoc_normalize_numbers(&p) * 4);
}

const KindRow kRmsNormalizationRow = {nullptr, LowerRmsNormalization};

}  // namespace tvm_byoc_dnnl
