// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/support/error.h"
#include "dnnl/candidate.h"
#include "dnnl/execute.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr double kFar = 3;       // times the cheapest: the model is not that wrong
constexpr size_t kMost = 5;      // candidates of a workload
constexpr double kLast = 1;      // seconds: after all that has a chance
constexpr double kFirst = 1e-6;  // of its cost: before all others
constexpr double kSecond = 1e-3;

using Names = std::map<std::string, double>;     // candidate, and the model's seconds
using Workloads = std::map<std::string, Names>;  // by WorkloadKey
using Times = std::map<std::string, std::map<std::string, std::vector<double>>>;  // the same
using Wanted = std::map<std::string, std::string>;  // workload, and the candidate to take

bool Competes(const Candidate& candidate) {
  return (candidate.pd || candidate.call) && candidate.work.products > 0 &&
         !IsReference(candidate.op.kind, candidate.impl) &&
         candidate.op.Find(DNNL_ARG_DST) != nullptr;
}

std::string ImplOf(const std::string& name) { return name.substr(0, name.find(' ')); }

/// The candidates that the model does not rule out, the cheapest first.
std::vector<std::string> Ranked(const Names& names) {
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, model] : names) order.emplace_back(model, name);
  std::sort(order.begin(), order.end());
  std::vector<std::string> ranked;
  for (const auto& [model, name] : order) {
    if (model <= kFar * order[0].first && ranked.size() < kMost) ranked.push_back(name);
  }
  return ranked;
}

/// One plan of the graph, in which wanted candidates are taken, and the seconds of its steps.
class Trial {
 public:
  Trial(const Graph& graph, const Shapes& shapes, const std::vector<const void*>& constants,
        PackedStore* store, Wanted wanted)
      : wanted_(std::move(wanted)) {
    Program program = Lowering(graph, shapes, [&](const Candidate& c, const Machine& machine) {
                        return Cost(c, machine);
                      }).Run();
    plan_ = std::make_unique<DnnlPlan>(std::move(program), shapes, constants, store);
    seconds_.resize(plan_->program().steps.size());
  }

  void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs, bool counts) {
    std::vector<double> seconds(seconds_.size());
    plan_->Execute(inputs, outputs, seconds.data());
    for (size_t i = 0; counts && i < seconds.size(); ++i) seconds_[i].push_back(seconds[i]);
  }

  /// Adds the median of each step that computes a workload, under the names that it was asked by. A
  /// candidate that only the other choices of this plan make possible is not `known`.
  void Collect(const Workloads& known, Times* all) {
    for (size_t i = 0; i < seconds_.size(); ++i) {
      const Step& step = plan_->program().steps[i];
      const OpArg* dst = step.op.Find(DNNL_ARG_DST);
      if (step.conversion || dst == nullptr || asked_.count(dst->value) == 0) continue;
      std::vector<double>& seconds = seconds_[i];
      std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
      for (const auto& [workload, name] : asked_[dst->value]) {
        const auto names = known.find(workload);
        const bool is_known = names != known.end() && names->second.count(name) > 0;
        if (is_known && Is(step, workload, name)) {
          (*all)[workload][name].push_back(seconds[seconds.size() / 2]);
        }
      }
    }
  }

 private:
  double Cost(const Candidate& candidate, const Machine& machine) {
    const double model = DefaultCost(candidate, machine);
    if (!Competes(candidate)) return model;
    const std::string workload = WorkloadKey(candidate.op), name = CandidateName(candidate);
    asked_[candidate.op.Find(DNNL_ARG_DST)->value].emplace(workload, name);
    auto wanted = wanted_.find(workload);
    if (wanted == wanted_.end()) return model;
    // A layout that an input has already changes the name, but not the implementation.
    return name == wanted->second                   ? kFirst * model
           : ImplOf(name) == ImplOf(wanted->second) ? kSecond * model
                                                    : kLast + model;
  }

  /// Whether a step runs a candidate, perhaps in another layout if that was the wanted one.
  bool Is(const Step& step, const std::string& workload, const std::string& name) const {
    if (ImplOf(name) != step.impl) return false;
    auto wanted = wanted_.find(workload);
    if (!step.pd || (wanted != wanted_.end() && wanted->second == name)) return true;
    return CandidateName({step.op, step.pd, step.impl, {}, {}}) == name;
  }

  const Wanted wanted_;
  std::map<int, std::set<std::pair<std::string, std::string>>> asked_;  // by the value computed
  std::unique_ptr<DnnlPlan> plan_;
  std::vector<std::vector<double>> seconds_;
};

/// Calls back with each candidate that competes for an operation of a graph.
void ForEachCandidate(const Graph& graph,
                      const std::function<void(const Candidate&, const Machine&)>& visit) {
  const Shapes shapes = Specialise(graph, {});
  Lowering(graph, shapes, [&](const Candidate& candidate, const Machine& machine) {
    if (Competes(candidate)) visit(candidate, machine);
    return DefaultCost(candidate, machine);
  }).Run();
}

/// Memory for values of these tensors, all zero: no value becomes infinitely small or large.
class Zeros {
 public:
  void* Add(const Graph& graph, const Shapes& shapes, int tensor) {
    const int64_t bytes = ElementCount(shapes[tensor]) * SizeOf(graph.tensors[tensor].dtype);
    memory_.emplace_back(static_cast<size_t>(bytes));
    return std::memset(memory_.back().data(), 0, memory_.back().bytes());
  }

 private:
  std::list<AlignedBuffer> memory_;
};

}  // namespace

CostModel CostByTimes(const KnownTimes& times, const std::string& setting) {
  if (times.workloads.empty() || times.setting != setting) return DefaultCost;
  auto known = std::make_shared<const KnownTimes>(times);
  return [known](const Candidate& candidate, const Machine& machine) {
    const double model = DefaultCost(candidate, machine);
    if (!Competes(candidate)) return model;
    auto workload = known->workloads.find(WorkloadKey(candidate.op));
    if (workload == known->workloads.end()) return model;
    const auto& candidates = workload->second;
    auto time = candidates.find(CandidateName(candidate));
    if (time != candidates.end()) return time->second.seconds + ReorderCost(candidate, machine);
    double seconds = 0, expected = 0;  // not measured: as far off as the model is for the others
    for (const auto& [name, known_time] : candidates) {
      seconds += known_time.seconds;
      expected += known_time.model;
    }
    return (model - ReorderCost(candidate, machine)) * seconds / expected +
           ReorderCost(candidate, machine);
  };
}

json::Object CostsOfProducts(const Graph& graph) {
  std::map<std::string, std::map<std::string, json::Object>> all;
  ForEachCandidate(graph, [&](const Candidate& candidate, const Machine& machine) {
    const std::string name = FamilyOf(candidate, machine);
    const Family* family = machine.rates->Find(name, machine.threads);
    if (family == nullptr) return;
    json::Object object;
    object.emplace_back("family", name);
    object.emplace_back("dtype", family->dtype);
    const auto add = [&](const char* field, const std::array<double, kCosts>& numbers) {
      object.emplace_back(field, json::Array(numbers.begin(), numbers.end()));
    };
    add("amounts", machine.rates->Amounts(candidate.work));
    add("seconds_of_each", machine.rates->SecondsOfEach(*family, machine.threads));
    object.emplace_back("reorder", ReorderCost(candidate, machine));
    all[WorkloadKey(candidate.op)].emplace(CandidateName(candidate), std::move(object));
  });
  json::Object workloads;
  for (auto& [workload, candidates] : all) {
    json::Object object;
    for (auto& [name, costs] : candidates) object.emplace_back(name, std::move(costs));
    workloads.emplace_back(workload, std::move(object));
  }
  return workloads;
}

KnownTimes MeasureProducts(const Graph& graph, int rounds) {
  const Shapes shapes = Specialise(graph, {});
  Workloads workloads;
  ForEachCandidate(graph, [&](const Candidate& candidate, const Machine& machine) {
    workloads[WorkloadKey(candidate.op)].emplace(
        CandidateName(candidate),
        DefaultCost(candidate, machine) - ReorderCost(candidate, machine));
  });
  KnownTimes found;
  std::map<std::string, std::vector<std::string>> ranked;
  size_t trials = 0;
  for (const auto& [workload, names] : workloads) {
    std::vector<std::string> candidates = Ranked(names);
    if (candidates.size() < 2) continue;
    trials = std::max(trials, candidates.size());
    for (const std::string& name : candidates) {
      found.workloads[workload][name].model = names.at(name);
    }
    ranked.emplace(workload, std::move(candidates));
  }
  if (rounds <= 0 || trials == 0) return found;

  Zeros zeros;
  std::vector<const void*> constants;
  std::vector<void*> inputs, outputs;
  for (const Constant& c : graph.constants) constants.push_back(zeros.Add(graph, shapes, c.tensor));
  for (const Input& i : graph.inputs)
    inputs.push_back(i.tensor < 0 ? nullptr : zeros.Add(graph, shapes, i.tensor));
  for (int tensor : graph.outputs) outputs.push_back(zeros.Add(graph, shapes, tensor));
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (graph.inputs[i].alias >= 0) outputs[graph.inputs[i].alias] = inputs[i];
  }
  PackedStore store;
  std::vector<std::unique_ptr<Trial>> all;
  for (size_t k = 0; k < trials; ++k) {
    Wanted wanted;
    for (const auto& [workload, names] : ranked) {
      wanted.emplace(workload, names[std::min(k, names.size() - 1)]);
    }
    all.push_back(std::make_unique<Trial>(graph, shapes, constants, &store, std::move(wanted)));
  }
  for (int round = 0; round <= rounds; ++round) {  // the first one warms up
    for (const auto& trial : all) trial->Run(inputs, outputs, round > 0);
  }
  Times seconds;
  for (const auto& trial : all) trial->Collect(workloads, &seconds);
  found.workloads.clear();
  for (auto& [workload, candidates] : seconds) {
    if (candidates.size() < 2) continue;
    for (auto& [name, times] : candidates) {
      std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
      found.workloads[workload][name] = {times[times.size() / 2], workloads[workload].at(name)};
    }
  }
  return found;
}

}  // namespace tvm_byoc_dnnl
