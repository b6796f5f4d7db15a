// SPDX-License-Identifier: Apache-2.0
#include "common/region.h"

#include <algorithm>

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kMaxPlans = 16;

}  // namespace

void Region::Initialise(std::vector<ConstantData> constants) {
  std::lock_guard<std::mutex> build_lock(build_mutex_);
  constants_ = std::move(constants);
  planner_ =
      engine_.NewPlanner(graph_);  // another one may hold what it packed from other constants
  if (graph_.IsStatic()) {
    std::shared_ptr<const Plan> plan = Build({});
    for (size_t i = 0; i < constants_.size(); ++i) {
      if (!plan->UsesConstant(i)) constants_[i] = {};  // packed: the original may go
    }
    std::atomic_store(&static_plan_, plan);
  }
  std::lock_guard<std::mutex> cache_lock(cache_mutex_);
  cache_.clear();
  initialised_ = true;
}

std::shared_ptr<const Plan> Region::Build(const Key& symbols) {
  std::vector<const void*> data;
  for (const ConstantData& constant : constants_) data.push_back(constant.data);
  std::unique_ptr<Plan> plan = planner_->MakePlan(Specialise(graph_, symbols), data);
  // Calls may still run when other constants take the place of these.
  std::vector<std::shared_ptr<const void>> read;
  for (size_t i = 0; i < constants_.size(); ++i) {
    if (plan->UsesConstant(i)) read.push_back(constants_[i].owner);
  }
  return {plan.release(), [read = std::move(read)](const Plan* dying) { delete dying; }};
}

std::shared_ptr<const Plan> Region::Lookup(const Key& symbols) {
  std::lock_guard<std::mutex> lock(cache_mutex_);
  auto found = std::find_if(cache_.begin(), cache_.end(),
                            [&](const auto& entry) { return entry.first == symbols; });
  if (found == cache_.end()) return nullptr;
  cache_.splice(cache_.begin(), cache_, found);
  return found->second;
}

std::shared_ptr<const Plan> Region::PlanFor(const std::vector<Dims>& arguments) {
  Key symbols = BindSymbols(graph_, arguments);
  if (std::shared_ptr<const Plan> plan = Lookup(symbols)) return plan;
  std::lock_guard<std::mutex> build_lock(build_mutex_);
  if (!initialised_) return nullptr;
  if (std::shared_ptr<const Plan> plan = Lookup(symbols)) return plan;  // built while we waited
  std::shared_ptr<const Plan> plan = Build(symbols);
  std::lock_guard<std::mutex> lock(cache_mutex_);
  cache_.emplace_front(std::move(symbols), plan);
  if (cache_.size() > kMaxPlans) cache_.pop_back();
  return plan;
}

}  // namespace tvm_byoc_dnnl
