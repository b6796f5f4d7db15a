// SPDX-License-Identifier: Apache-2.0
// Inputs that an output is written over: a cache that is updated in place.
#include <algorithm>
#include <set>

#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

/// Kinds whose result may lie in the memory of their input.
bool IsView(Kind kind) {
  return kind == Kind::kReshape || kind == Kind::kPermute || kind == Kind::kSlice ||
         kind == Kind::kExpand;
}

/// Tensors that lie in the memory of `tensor`.
std::vector<bool> ViewsOf(const Graph& graph, int tensor) {
  std::vector<bool> views(graph.tensors.size(), false);
  views[tensor] = true;
  for (const Node& node : graph.nodes) {
    views[node.output] = IsView(node.kind) && views[node.inputs[0]];
  }
  return views;
}

void CheckAlias(const Graph& graph, size_t index) {
  const Input& input = graph.inputs[index];
  const std::string where = Cat("input ", index, " \"", graph.tensors[input.tensor].name, "\"");
  if (input.alias >= static_cast<int>(graph.outputs.size())) {
    Fail(ErrorKind::kGraph, where, ": is the alias of an output that is out of range, there are ",
         graph.outputs.size(), " outputs");
  }
  const int result = graph.outputs[input.alias];
  const Tensor& from = graph.tensors[input.tensor];
  const Tensor& to = graph.tensors[result];
  if (from.dtype != to.dtype || from.shape != to.shape) {
    Fail(ErrorKind::kGraph, where, ": is the alias of output ", input.alias, ", which is ",
         Name(to.dtype), Join(KnownDims(to.shape)), ", expected ", Name(from.dtype),
         Join(KnownDims(from.shape)));
  }
  if (result == input.tensor) return;  // nothing is written
  const std::vector<bool> views = ViewsOf(graph, input.tensor);
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (views[graph.outputs[i]]) {
      Fail(ErrorKind::kGraph, where, ": output ", i, " reads it after output ", input.alias,
           " has been written over it");
    }
  }
  bool written = false;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::vector<int> reads = graph.nodes[i].Reads();
    if (written && std::any_of(reads.begin(), reads.end(), [&](int t) { return views[t]; })) {
      Fail(ErrorKind::kGraph, where, ": node ", i, " (", Name(graph.nodes[i].kind),
           ") reads it after output ", input.alias, " has been written over it");
    }
    written |= graph.nodes[i].output == result;
  }
  if (!written) {
    Fail(ErrorKind::kGraph, where, ": output ", input.alias,
         " is another input or a constant, expected the input itself or the result of a node");
  }
}

}  // namespace

void CheckAliases(const Graph& graph) {
  std::set<int> taken;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (graph.inputs[i].alias < 0) continue;
    CheckAlias(graph, i);
    if (!taken.insert(graph.inputs[i].alias).second) {
      Fail(ErrorKind::kGraph, "input ", i, ": output ", graph.inputs[i].alias,
           " is written over another input already");
    }
  }
}

}  // namespace tvm_byoc_dnnl
