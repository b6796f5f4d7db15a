// SPDX-License-Identifier: Apache-2.0
#include "common/plan_cache.h"

#include <algorithm>

namespace tvm_byoc_dnnl {

std::shared_ptr<const Plan> PlanCache::Find(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(plans_.begin(), plans_.end(),
                            [&](const auto& entry) { return entry.first == key; });
  if (found == plans_.end()) return nullptr;
  ++counters_.hits;
  plans_.splice(plans_.begin(), plans_, found);
  return found->second;
}

void PlanCache::Insert(Key key, std::shared_ptr<const Plan> plan, double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.made;
  ++counters_.plans;
  counters_.seconds += seconds;
  counters_.bytes += static_cast<int64_t>(plan->bytes());
  plans_.emplace_front(std::move(key), std::move(plan));
  while (plans_.size() > 1 && counters_.bytes > static_cast<int64_t>(budget_)) {
    counters_.bytes -= static_cast<int64_t>(plans_.back().second->bytes());
    --counters_.plans;
    ++counters_.dropped;
    plans_.pop_back();
  }
}

void PlanCache::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  plans_.clear();
  counters_ = {};
}

PlanCounters PlanCache::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace tvm_byoc_dnnl
