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
  std::vector<std::string> names;
  for (const Constant& constant : graph.constants) names.push_back(constant.name);
  if (names != artifact_.const_names) {
    Fail(ErrorKind::kGraph, graph.name, ": the constants are named ", Join(artifact_.const_names),
         ", in the graph ", Join(names));
  }
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
  json::Object object;
  object.emplace_back("symbolic", !graph().IsStatic());
  object.emplace_back("plans", counters.plans);
  object.emplace_back("bytes", counters.bytes);
  object.emplace_back("hits", counters.hits);
  object.emplace_back("made", counters.made);
  object.emplace_back("dropped", counters.dropped);
  object.emplace_back("parts", counters.parts);
  object.emplace_back("seconds", counters.seconds);
  object.emplace_back("late", late_.load());
  object.emplace_back("narrowed", narrowed_.load());
  return json::Value(std::move(object)).Dump();
}

}  // namespace tvm_byoc_dnnl
