// SPDX-License-Identifier: Apache-2.0
// The graph parser and what follows it before oneDNN: symbols, shapes, destinations.
#include "common/graph.h"
#include "common/memory_plan.h"
#include "common/support/error.h"
#include "fuzz.h"

using namespace tvm_byoc_dnnl;  // NOLINT: a test

namespace {

void Specialised(const Graph& graph, int64_t size) {
  try {
    // Through the arguments, as a call does: all plain symbols of this size.
    std::vector<int64_t> symbols(graph.symbols.size(), size);
    std::vector<Dims> arguments;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      arguments.push_back(Evaluate(graph.InputShape(static_cast<int>(i)), symbols));
    }
    Shapes shapes = Specialise(graph, BindSymbols(graph, arguments));
    FindLastUses(graph);
    FindDestinations(graph, shapes);
    FindSlices(graph, shapes);
  } catch (const Error& error) {
    fuzz::Require(error.kind() == ErrorKind::kInput, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Graph graph;
  try {
    graph = ParseGraph(fuzz::Text(data, size));
  } catch (const Error& error) {
    fuzz::Require(error.kind() == ErrorKind::kGraph || error.kind() == ErrorKind::kArtifact,
                  error.what());
    return 0;
  }
  for (int64_t value : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1} << 61}) {
    Specialised(graph, value);
    if (graph.IsStatic()) break;
  }
  return 0;
}
