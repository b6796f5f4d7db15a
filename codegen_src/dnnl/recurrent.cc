// SPDX-License-Identifier: Apache-2.0
// Recurrent layers by a kernel of ours, which has all cells, options and activations of ONNX, and
// weights of fewer bits, which it reads as they are stored.
#include <algorithm>

#include "common/graph.h"
#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_recurrent.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kRecurrent = {"recurrent", "recurrent", byoc_recurrent};
constexpr Kernel kRecurrentPack = {"recurrent_pack", "recurrent_plan", byoc_recurrent_pack};

constexpr int kSource = 0, kWeights = 1, kRecurrentWeights = 2, kFirstRole = 3;

bool Has(const std::vector<std::string>& words, const char* word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The input that has a role, if there is one.
std::optional<int> InputOf(const NodeView& n, const char* role) {
  const std::vector<std::string>& roles = n.a.roles;
  const auto found = std::find(roles.begin(), roles.end(), role);
  if (found == roles.end()) return std::nullopt;
  return kFirstRole + static_cast<int>(found - roles.begin());
}

byoc_cell CellOf(const std::string& alg) {
  if (alg == "rnn") return BYOC_RNN;
  if (alg == "gru") return BYOC_GRU;
  return alg == "lbr_gru" ? BYOC_LBR_GRU : BYOC_LSTM;
}

void DescribeCurves(const Attrs& a, byoc_recurrent_params* p) {
  const std::vector<std::string> names = Words(kActivations);
  const size_t each = a.activations.size() / a.directions.size();
  for (size_t i = 0; i < a.activations.size(); ++i) {
    byoc_recurrent_curve& curve = p->curves[i / each][i % each];
    curve.kind = std::find(names.begin(), names.end(), a.activations[i]) - names.begin();
    // Not -0, whose bits cannot be printed as a number.
    curve.alpha = a.alphas.empty() ? 0 : a.alphas[i] + 0.0;
    curve.beta = a.betas.empty() ? 0 : a.betas[i] + 0.0;
  }
}

byoc_recurrent_params ParamsOf(const NodeView& n, byoc_isa isa) {
  const Attrs& a = n.a;
  byoc_recurrent_params p{};
  p.shape.isa = isa;
  p.shape.cell = CellOf(a.alg);
  p.shape.directions = static_cast<int64_t>(a.directions.size());
  p.shape.input = n.Shape(kSource)[2];
  p.shape.hidden = n.OutShape()[3];
  p.shape.has_bias = Has(a.roles, "bias");
  p.shape.has_peepholes = Has(a.roles, "peepholes");
  const DType stored = n.DTypeOf(kWeights);  // float32 in the place of a bfloat16 that is not there
  p.shape.bits = stored == DType::kInt8 ? 8 : stored == DType::kBFloat16 ? 16 : 32;
  p.steps = n.Shape(kSource)[0];
  p.batch = n.Shape(kSource)[1];
  p.has_state = Has(a.roles, "state");
  p.has_cell = Has(a.roles, "cell");
  p.has_lengths = Has(a.roles, "lengths");
  p.wants_state = Has(a.results, "state");
  p.wants_cell = Has(a.results, "cell");
  p.wants_all = Has(a.results, "all");
  for (size_t d = 0; d < a.directions.size(); ++d) p.reverse[d] = a.directions[d] == "reverse";
  DescribeCurves(a, &p);
  p.clip = a.clip;
  p.coupled = a.alg == "coupled_lstm";
  const Machine& machine = n.lowering.machine();
  const int64_t step = byoc_recurrent_step_work(&p);
  p.threads = machine.ThreadsFor(p.steps * step * p.shape.directions, "wake_recurrent");
  p.waits = static_cast<double>(step) >= machine.Limit("wake_step");
  return p;
}

/// The weights as the kernel reads them.
int Packed(const NodeView& n, const byoc_recurrent_shape& shape) {
  Lowering& l = n.lowering;
  std::vector<OpArg> args = {n.AsDense(DNNL_ARG_WEIGHTS_0, kWeights),
                             n.AsDense(DNNL_ARG_WEIGHTS_1, kRecurrentWeights)};
  const std::pair<const char*, int> roles[] = {
      {"bias", DNNL_ARG_BIAS}, {"peepholes", DNNL_ARG_WEIGHTS_2}, {"scales", DNNL_ARG_SCALE}};
  for (const auto& [role, arg] : roles) {
    if (const auto input = InputOf(n, role)) args.push_back(n.AsDense(arg, *input));
  }
  const auto bytes = static_cast<int64_t>(byoc_recurrent_packed_bytes(&shape));
  // Others may read the same weights beside other ones.
  const int tensor = l.IsReadOnce(n.In(kWeights)) ? n.In(kWeights) : -1;
  return l.Pack(kRecurrentPack, AsParams(shape), args, tensor, bytes);
}

/// Each step reads all weights, and widens those of bfloat16 for each sequence.
double SecondsOf(const byoc_recurrent_params& p, const Machine& machine) {
  const double numbers = static_cast<double>(p.shape.directions * byoc_gates(p.shape.cell) *
                                             p.shape.hidden * (p.shape.input + p.shape.hidden));
  const auto steps = static_cast<double>(p.steps);
  Work work;
  work.products = steps * static_cast<double>(p.batch) * numbers;
  work.bytes = steps * numbers * static_cast<double>(p.shape.bits) / 8;
  work.vectors = steps;
  return machine.Seconds(p.shape.bits == 16 ? "recurrent_bfloat16" : "recurrent", work);
}

}  // namespace

static void LowerRecurrent(const NodeView& n) {
  const std::optional<byoc_isa> isa = n.lowering.isa().Vectors();
  if (!isa) n.lowering.FailUnsupported("the kernel of recurrent layers needs AVX2");
  byoc_recurrent_params p = ParamsOf(n, *isa);
  const MemoryDesc source = n.DenseRows(n.In(kSource));
  // The directions of a sequence side by side, as frameworks join them.
  const MemoryDesc result = n.OutRows(Ordered(n.OutShape(), DType::kFloat32, {0, 2, 1, 3}));
  p.src_step = source.get_strides()[0];
  p.src_row = source.get_strides()[1];
  p.dst_row = result.get_strides()[0];
  p.dst_direction = result.get_strides()[1];
  p.dst_sequence = result.get_strides()[2];
  const int packed = Packed(n, p.shape);
  std::vector<OpArg> args = {
      {DNNL_ARG_SRC_0, n.In(kSource), source},
      {DNNL_ARG_WEIGHTS, packed, Dense(n.lowering.shape(packed), DType::kUInt8)}};
  const std::pair<const char*, int> roles[] = {
      {"state", DNNL_ARG_SRC_1}, {"cell", DNNL_ARG_SRC_2}, {"lengths", DNNL_ARG_SRC_3}};
  for (const auto& [role, arg] : roles) {
    if (const auto input = InputOf(n, role)) args.push_back(n.AsDense(arg, *input));
  }
  args.push_back({DNNL_ARG_DST, n.output, result});
  n.lowering.EmitKernel(StepOf(kRecurrent, KernelImpl("recurrent", *isa), p), args,
                        static_cast<int64_t>(byoc_recurrent_scratch_bytes(&p)),
                        SecondsOf(p, n.lowering.machine()));
}

const KindRow kRecurrentRow = {nullptr, LowerRecurrent};

}  // namespace tvm_byoc_dnnl
