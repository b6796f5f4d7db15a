// SPDX-License-Identifier: Apache-2.0
#include "common/region.h"

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

}  // namespace tvm_byoc_dnnl
