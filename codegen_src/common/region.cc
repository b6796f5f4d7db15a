// SPDX-License-Identifier: Apache-2.0
#include "common/region.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tvm_byoc_dnnl {

void Region::Initialise(std::vector<ConstantData> constants) {
  std::lock_guard<std::mutex> build_lock(build_mutex_);
  constants_ = std::move(constants);
  planner_ = engine_.NewPlanner(graph_);  // an older one may have packed other constants
  if (graph_.IsStatic()) {
    std::atomic_store(&static_plan_, std::make_shared<const Planned>(
                                         Planned{Build({}, /*grows=*/false), engine_.Threads()}));
  }
  plans_.Clear();
  initialised_ = true;
}

std::shared_ptr<const Plan> Region::Build(const PlanCache::Key& symbols, bool grows) {
  std::vector<const void*> data;
  for (const ConstantData& constant : constants_) data.push_back(constant.data);
  const Shapes shapes = Specialise(graph_, symbols);
  std::unique_ptr<Plan> plan =
      grows ? planner_->MakeGrowingPlan(shapes, data, *growth_) : planner_->MakePlan(shapes, data);
  // Calls may still run when other constants take the place of these.
  std::vector<std::shared_ptr<const void>> read;
  for (size_t i = 0; i < constants_.size(); ++i) {
    if (plan->UsesConstant(i)) read.push_back(constants_[i].owner);
  }
  return {plan.release(), [read = std::move(read)](const Plan* dying) { delete dying; }};
}

std::shared_ptr<const Plan> Region::StaticPlan() {
  const std::shared_ptr<const Planned> first = std::atomic_load(&static_plan_);
  if (first == nullptr) return nullptr;
  return first->threads == engine_.Threads() ? first->plan : Cached({}, /*grows=*/false);
}

std::shared_ptr<const Plan> Region::GrowingPlanFor(const std::vector<int64_t>& symbols,
                                                   int64_t capacity) {
  return Cached(AtCapacity(*growth_, symbols, capacity), /*grows=*/true);
}

std::shared_ptr<const Plan> Region::PlanToRun(const std::vector<int64_t>& symbols) {
  const PlanCache::Key key = KeyOf(symbols, /*grows=*/false);
  if (std::shared_ptr<const Plan> plan = plans_.Find(key)) return plan;
  if (!batch_) return PlanOf(symbols);
  const int64_t batch = symbols[*batch_];
  if (batch > 1 && plans_.counters().made == 0 &&
      PaysInParts(graph_, 2, engine_.SecondsOfPlans())) {
    std::shared_ptr<const Plan> plan = PlanOf(symbols);
    PlanCache::Key one = symbols;
    one[*batch_] = 1;
    if (plan != nullptr) PlanOf(one);
    return plan;
  }
  std::vector<PartsPlan::Part> parts;
  int64_t rest = batch;
  for (const auto& [samples, plan] : plans_.FindSmaller(key, *batch_)) {
    const int64_t times = rest / samples;
    if (!PaysInParts(graph_, parts.size() + times, engine_.SecondsOfPlans())) break;
    parts.insert(parts.end(), times, {samples, plan});
    rest -= times * samples;
  }
  if (rest > 0 || parts.empty() || !plans_.CountParts(key)) return PlanOf(symbols);
  return std::make_shared<PartsPlan>(graph_, *batch_, Specialise(graph_, symbols),
                                     std::move(parts));
}

PlanCache::Key Region::KeyOf(const PlanCache::Key& symbols, bool grows) const {
  PlanCache::Key key = symbols;
  key.push_back(engine_.Threads());
  key.push_back(grows ? 1 : 0);
  return key;
}

std::shared_ptr<const Plan> Region::Cached(const PlanCache::Key& symbols, bool grows) {
  PlanCache::Key key = KeyOf(symbols, grows);
  if (std::shared_ptr<const Plan> plan = plans_.Find(key)) return plan;
  std::lock_guard<std::mutex> build_lock(build_mutex_);
  if (!initialised_) return nullptr;
  if (auto plan = plans_.Find(key)) return plan;  // made while we waited
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<const Plan> plan = Build(symbols, grows);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  plans_.Insert(std::move(key), plan, taken.count());
  return plan;
}

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
