// SPDX-License-Identifier: Apache-2.0
// One partitioned region at run time: its graph, constants and plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine.h"
#include "common/graph.h"
#include "common/parts.h"

namespace tvm_byoc_dnnl {

/// The counters of a cache.
struct PlanCounters {
  int64_t plans = 0;    // that it has now
  int64_t bytes = 0;    // that these keep
  int64_t hits = 0;     // calls of a size seen before
  int64_t made = 0;     // calls of a new size
  int64_t dropped = 0;  // plans that were removed
  int64_t parts = 0;    // calls of a new size by plans of smaller batches
  double seconds = 0;   // spent making plans
};

/// The plans of one region: one for each set of sizes and number of threads, as many as fit a
/// number of bytes.
class PlanCache {
 public:
  using Key = std::vector<int64_t>;  // the symbols' values, then the number of threads

  explicit PlanCache(size_t budget) : budget_(budget) {}

  /// The plan for these sizes, or nullptr.
  std::shared_ptr<const Plan> Find(const Key& key);

  /// The plans whose keys differ from this one in one number alone, which is larger here: that
  /// number and the plan, the largest first.
  std::vector<std::pair<int64_t, std::shared_ptr<const Plan>>> FindSmaller(const Key& key,
                                                                           size_t place) const;

  /// Counts a call by plans of smaller batches. False if there was one of this size before.
  bool CountParts(const Key& key);

  /// Adds a plan, made in so many seconds. Those used longest ago are removed until all fit; a call
  /// that runs one of them keeps it alive.
  void Insert(Key key, std::shared_ptr<const Plan> plan, double seconds);

  void Clear();
  PlanCounters counters() const;

 private:
  const size_t budget_;
  mutable std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Plan>>> plans_;  // the most recently used first
  std::set<Key> in_parts_;
  PlanCounters counters_;
};

/// A constant as the host holds it.
struct ConstantData {
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};

/// Of one region's plans for symbolic shapes.
constexpr size_t kPlanBytes = size_t{256} << 20;

/// The caches of a graph for which an engine makes growing plans.
inline std::optional<Growth> GrowthFor(const Engine& engine, const Graph& graph) {
  std::optional<Growth> growth = FindGrowth(graph);
  return growth && engine.Grows(graph, *growth) ? growth : std::nullopt;
}

class Region {
 public:
  Region(const Engine& engine, const std::string& graph_json, size_t plan_bytes = kPlanBytes)
      : engine_(engine),
        graph_(ParseGraph(graph_json)),
        growth_(GrowthFor(engine, graph_)),
        batch_(FindBatch(graph_)),
        plans_(plan_bytes) {}

  const Graph& graph() const { return graph_; }

  /// Takes the constants (one per constant of the graph, already checked) and plans a static graph.
  void Initialise(std::vector<ConstantData> constants);

  /// The plan of a static graph for the threads that this thread may use, or nullptr before
  /// Initialise.
  std::shared_ptr<const Plan> StaticPlan();

  /// The plan of a symbolic graph for arguments of these shapes; nullptr before Initialise.
  std::shared_ptr<const Plan> PlanFor(const std::vector<Dims>& arguments) {
    return PlanOf(BindSymbols(graph_, arguments));
  }

  /// The same for these values of its symbols.
  std::shared_ptr<const Plan> PlanOf(const std::vector<int64_t>& symbols) {
    return Cached(symbols, /*grows=*/false);
  }

  /// The plan that runs a call with these values. The first call of a larger batch may run plans of
  /// smaller ones, where the samples are independent and that takes no longer than making a plan.
  /// There is one of a single sample then: it is made with the first plan.
  std::shared_ptr<const Plan> PlanToRun(const std::vector<int64_t>& symbols);

  /// The caches of the graph, if there are some and the engine can let them grow.
  const std::optional<Growth>& growth() const { return growth_; }

  /// The plan for caches of any length up to this one; nullptr before Initialise.
  std::shared_ptr<const Plan> GrowingPlanFor(const std::vector<int64_t>& symbols, int64_t capacity);

  /// The counters of the plans of a symbolic graph.
  PlanCounters counters() const { return plans_.counters(); }

 private:
  /// A plan, and the threads that it is for.
  struct Planned {
    std::shared_ptr<const Plan> plan;
    int threads;
  };

  PlanCache::Key KeyOf(const PlanCache::Key& symbols, bool grows) const;
  std::shared_ptr<const Plan> Build(const PlanCache::Key& symbols, bool grows);
  /// The plan from the cache for the threads that this thread may use, made if it is not there;
  /// nullptr before Initialise.
  std::shared_ptr<const Plan> Cached(const PlanCache::Key& symbols, bool grows);

  const Engine& engine_;
  const Graph graph_;
  const std::optional<Growth> growth_;
  const std::optional<int> batch_;              // a symbol: see FindBatch
  std::shared_ptr<const Planned> static_plan_;  // for the threads of Initialise
  std::mutex build_mutex_;                      // one build at a time; guards the three below
  std::unique_ptr<Planner> planner_;
  std::vector<ConstantData> constants_;
  bool initialised_ = false;
  PlanCache plans_;
};

}  // namespace tvm_byoc_dnnl
