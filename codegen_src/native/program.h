// SPDX-License-Identifier: Apache-2.0
// A model as calls of its regions (docs/portable_graph.md): values are tensors with symbolic dims,
// as in a portable graph; a call reads some and makes others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/graph.h"
#include "common/support/json.h"
#include "native/host_operators.h"

namespace tvm_byoc_dnnl {

constexpr const char* kProgramFormat = "tvm_byoc_dnnl.program";
constexpr int64_t kProgramVersion = 2;

/// A call of a region, or an operator on indices. With neither the only output is the only input in
/// another shape.
struct RegionCall {
  std::string region;
  const HostOperator* op = nullptr;
  std::vector<Input> inputs;
  std::vector<int> outputs;
};

struct Program {
  Graph graph;                         // values, inputs, constants and outputs; no nodes
  std::vector<std::string> constants;  // the bytes of each
  std::vector<RegionCall> calls;
  json::Object signature;  // what it says about itself to whoever calls it
};

/// Parses and validates. Throws Error(kGraph); Error(kArtifact) for another version; and
/// Error(kUnsupported) with the reason if the model cannot be run in this way.
Program ParseProgram(std::string_view json);

}  // namespace tvm_byoc_dnnl
