// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

using dnnl::algorithm;

struct Row {
  Kind kind;
  const char* name;
  algorithm alg;
};

constexpr Row kRows[] = {
    {Kind::kPooling, "max", algorithm::pooling_max},
    {Kind::kPooling, "avg_include_padding", algorithm::pooling_avg_include_padding},
    {Kind::kPooling, "avg_exclude_padding", algorithm::pooling_avg_exclude_padding},
    {Kind::kEltwise, "relu", algorithm::eltwise_relu},
    {Kind::kEltwise, "relu_of_numbers", algorithm::eltwise_relu},
    {Kind::kEltwise, "tanh", algorithm::eltwise_tanh},
    {Kind::kEltwise, "elu", algorithm::eltwise_elu},
    {Kind::kEltwise, "square", algorithm::eltwise_square},
    {Kind::kEltwise, "abs", algorithm::eltwise_abs},
    {Kind::kEltwise, "sqrt", algorithm::eltwise_sqrt},
    {Kind::kEltwise, "linear", algorithm::eltwise_linear},
    {Kind::kEltwise, "soft_relu", algorithm::eltwise_soft_relu},
    {Kind::kEltwise, "hardsigmoid", algorithm::eltwise_hardsigmoid},
    {Kind::kEltwise, "mish", algorithm::eltwise_mish},
    {Kind::kEltwise, "logistic", algorithm::eltwise_logistic},
    {Kind::kEltwise, "exp", algorithm::eltwise_exp},
    {Kind::kEltwise, "gelu_tanh", algorithm::eltwise_gelu_tanh},
    {Kind::kEltwise, "gelu_erf", algorithm::eltwise_gelu_erf},
    {Kind::kEltwise, "swish", algorithm::eltwise_swish},
    {Kind::kEltwise, "log", algorithm::eltwise_log},
    {Kind::kEltwise, "clip", algorithm::eltwise_clip},
    {Kind::kEltwise, "pow", algorithm::eltwise_pow},
    {Kind::kEltwise, "round", algorithm::eltwise_round},
    {Kind::kEltwise, "hardswish", algorithm::eltwise_hardswish},
    {Kind::kBinary, "add", algorithm::binary_add},
    {Kind::kBinary, "sub", algorithm::binary_sub},
    {Kind::kBinary, "mul", algorithm::binary_mul},
    {Kind::kBinary, "div", algorithm::binary_div},
    {Kind::kBinary, "max", algorithm::binary_max},
    {Kind::kBinary, "min", algorithm::binary_min},
    {Kind::kBinary, "max_of_numbers", algorithm::binary_max},
    {Kind::kBinary, "min_of_numbers", algorithm::binary_min},
    {Kind::kBinary, "ge", algorithm::binary_ge},
    {Kind::kBinary, "gt", algorithm::binary_gt},
    {Kind::kBinary, "le", algorithm::binary_le},
    {Kind::kBinary, "lt", algorithm::binary_lt},
    {Kind::kBinary, "eq", algorithm::binary_eq},
    {Kind::kBinary, "ne", algorithm::binary_ne},
    {Kind::kSoftmax, "accurate", algorithm::softmax_accurate},
    {Kind::kSoftmax, "log", algorithm::softmax_log},
    {Kind::kLrn, "across_channels", algorithm::lrn_across_channels},
    {Kind::kLrn, "within_channel", algorithm::lrn_within_channel},
    {Kind::kReduction, "max", algorithm::reduction_max},
    {Kind::kReduction, "min", algorithm::reduction_min},
    {Kind::kReduction, "sum", algorithm::reduction_sum},
    {Kind::kReduction, "mul", algorithm::reduction_mul},
    {Kind::kReduction, "mean", algorithm::reduction_mean},
    {Kind::kReduction, "norm_lp_max", algorithm::reduction_norm_lp_max},
    {Kind::kReduction, "norm_lp_sum", algorithm::reduction_norm_lp_sum},
    {Kind::kReduction, "norm_lp_power_p_max", algorithm::reduction_norm_lp_power_p_max},
    {Kind::kReduction, "norm_lp_power_p_sum", algorithm::reduction_norm_lp_power_p_sum},
    {Kind::kResampling, "nearest", algorithm::resampling_nearest},
    {Kind::kResampling, "linear", algorithm::resampling_linear},
};

}  // namespace

algorithm ToDnnl(Kind kind, const std::string& alg) {
  for (const Row& row : kRows) {
    if (row.kind == kind && alg == row.name) return row.alg;
  }
  Fail(ErrorKind::kUnsupported, "oneDNN's ", Name(kind), " has no algorithm \"", alg, "\"");
}

Operation OperationOf(Kind kind, const std::string& alg, double alpha, double beta) {
  const bool of_numbers = alg.find("_of_numbers") != std::string::npos;
  return {ToDnnl(kind, alg), of_numbers, static_cast<float>(alpha), static_cast<float>(beta)};
}

const KindRow& RowOf(Kind kind) {
  static constexpr const KindRow* kRows[] = {
#define KIND(Name, ...) &k##Name##Row,
#include "common/kind_rows.h"
#undef KIND
  };
  return *kRows[static_cast<int>(kind)];
}

Node NewNode(Kind kind, std::vector<int> inputs, int output) {
  Node node;
  node.kind = kind;
  node.own_inputs = static_cast<int>(inputs.size());
  node.inputs = std::move(inputs);
  node.scalings.resize(node.inputs.size());
  node.output = output;
  return node;
}

}  // namespace tvm_byoc_dnnl
