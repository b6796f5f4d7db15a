// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

#include <dnnl_debug.h>

#include <string_view>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

using dnnl::algorithm;

/// Those that a node may name, from the first to the last of oneDNN's numbers.
constexpr std::pair<algorithm, algorithm> kAlgorithms[] = {
    {algorithm::eltwise_relu, algorithm::eltwise_hardswish},
    {algorithm::binary_add, algorithm::binary_ne},
    {algorithm::reduction_max, algorithm::reduction_norm_lp_power_p_sum},
    {algorithm::softmax_accurate, algorithm::softmax_log},
    {algorithm::resampling_nearest, algorithm::resampling_linear},
    {algorithm::pooling_max, algorithm::pooling_max},
    {algorithm::pooling_avg_include_padding, algorithm::pooling_avg_include_padding},
    {algorithm::pooling_avg_exclude_padding, algorithm::pooling_avg_exclude_padding},
    {algorithm::lrn_across_channels, algorithm::lrn_across_channels},
    {algorithm::lrn_within_channel, algorithm::lrn_within_channel}};

/// Behind the name of a bound that answers a NaN with itself.
constexpr std::string_view kOfNumbers = "_of_numbers";

}  // namespace

algorithm ToDnnl(Kind kind, const std::string& alg) {
  const std::string name = Cat(Name(kind), "_", alg.substr(0, alg.find(kOfNumbers)));
  for (const auto& [first, last] : kAlgorithms) {
    for (int number = static_cast<int>(first); number <= static_cast<int>(last); ++number) {
      if (name == dnnl_alg_kind2str(static_cast<dnnl_alg_kind_t>(number)))
        return static_cast<algorithm>(number);
    }
  }
  Fail(ErrorKind::kUnsupported, "oneDNN's ", Name(kind), " has no algorithm \"", alg, "\"");
}

Operation OperationOf(Kind kind, const std::string& alg, double alpha, double beta) {
  const bool of_numbers = alg.find(kOfNumbers) != std::string::npos;
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
