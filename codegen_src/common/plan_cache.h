// SPDX-License-Identifier: Apache-2.0
// The plans of one region: one for each set of sizes and number of threads, as many as fit a number
// of bytes.
#ifndef TVM_BYOC_DNNL_COMMON_PLAN_CACHE_H_
#define TVM_BYOC_DNNL_COMMON_PLAN_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "common/engine.h"

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

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_PLAN_CACHE_H_
