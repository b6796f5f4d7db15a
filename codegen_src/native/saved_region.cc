// SPDX-License-Identifier: Apache-2.0
#include "native/saved_region.h"

#include <utility>

#include "common/support/error.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {

SavedRegion::SavedRegion(Artifact artifact)
    : artifact_(std::move(artifact)),
      engine_(FindEngine(artifact_.engine)),
      region_(engine_, artifact_.graph_json) {
  const Graph& graph = region_.graph();
  if (graph.name != artifact_.symbol) {
    Fail(ErrorKind::kGraph, "the module's symbol is \"", artifact_.symbol,
         "\", its graph's name \"", graph.name, "\"");
  }
  CheckConstants(graph, artifact_.const_names);
}

void SavedRegion::Initialise(std::vector<ConstantData> constants) {
  try {
    region_.Initialise(std::move(constants));
  } catch (const Error& error) {
    const std::string isa = engine_.Isa();
    if (error.kind() != ErrorKind::kUnsupported || artifact_.isa == isa) throw;
    Fail(error.kind(), error.what(), ". This CPU has ", isa, ", the model was built on ",
         artifact_.isa, ": build it on a CPU like this one, or under ", engine_.HowToSetIsa());
  }
}

std::shared_ptr<const Plan> SavedRegion::PlanToRun(const std::vector<int64_t>& symbols,
                                                   bool whole) {
  return graph().IsStatic() ? region_.StaticPlan()
         : whole            ? region_.PlanOf(symbols)
                            : region_.PlanToRun(symbols);
}

std::string SavedRegion::Counters() const {
  const PlanCounters counters = region_.counters();
  json::Object object = {{"symbolic", !graph().IsStatic()},
                         {"plans", counters.plans},
                         {"bytes", counters.bytes},
                         {"hits", counters.hits},
                         {"made", counters.made},
                         {"dropped", counters.dropped},
                         {"parts", counters.parts},
                         {"seconds", counters.seconds},
                         {"late", late_.load()},
                         {"narrowed", narrowed_.load()}};
  return json::Value(std::move(object)).Dump();
}

}  // namespace tvm_byoc_dnnl
