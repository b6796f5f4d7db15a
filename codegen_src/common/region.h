// SPDX-License-Identifier: Apache-2.0
// One partitioned region at run time: its graph, constants and plans.
#ifndef TVM_BYOC_DNNL_COMMON_REGION_H_
#define TVM_BYOC_DNNL_COMMON_REGION_H_

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/engine.h"
#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// A constant as the host holds it.
struct ConstantData {
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};

class Region {
 public:
  Region(const Engine& engine, const std::string& graph_json)
      : engine_(engine), graph_(ParseGraph(graph_json)) {}

  const Graph& graph() const { return graph_; }

  /// Takes the constants (one per constant of the graph, already checked) and plans a static graph.
  void Initialise(std::vector<ConstantData> constants);

  /// The plan of a static graph, or nullptr before Initialise.
  std::shared_ptr<const Plan> StaticPlan() const { return std::atomic_load(&static_plan_); }

  /// The plan of a symbolic graph for arguments of these shapes; nullptr before Initialise.
  std::shared_ptr<const Plan> PlanFor(const std::vector<Dims>& arguments);

 private:
  using Key = std::vector<int64_t>;  // the symbols' values
  std::shared_ptr<const Plan> Build(const Key& symbols);
  std::shared_ptr<const Plan> Lookup(const Key& symbols);

  const Engine& engine_;
  const Graph graph_;
  std::shared_ptr<const Plan> static_plan_;
  std::mutex build_mutex_;  // one build at a time; guards the two below
  std::unique_ptr<Planner> planner_;
  std::vector<ConstantData> constants_;
  std::mutex cache_mutex_;
  bool initialised_ = false;
  std::list<std::pair<Key, std::shared_ptr<const Plan>>> cache_;  // the most recently used first
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_REGION_H_
