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

std::vector<std::pair<int64_t, std::shared_ptr<const Plan>>> PlanCache::FindSmaller(
    const Key& key, size_t place) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<int64_t, std::shared_ptr<const Plan>>> found;
  for (const auto& [other, plan] : plans_) {
    if (other.size() != key.size() || other[place] >= key[place] || other[place] == 0) continue;
    Key expected = key;
    expected[place] = other[place];
    if (other == expected) found.emplace_back(other[place], plan);
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  return found;
}

bool PlanCache::CountParts(const Key& key) {
  constexpr size_t kMany = 1024;
  std::lock_guard<std::mutex> lock(mutex_);
  if (in_parts_.size() == kMany) in_parts_.clear();
  if (!in_parts_.insert(key).second) return false;
  ++counters_.parts;
  return true;
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
  in_parts_.clear();
  counters_ = {};
}

PlanCounters PlanCache::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace tvm_byoc_dnnl
