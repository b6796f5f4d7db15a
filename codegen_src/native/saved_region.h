// SPDX-License-Identifier: Apache-2.0
// A region out of a saved module, ready to be called: what TVM's door and the C ABI share.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/artifact.h"
#include "common/engine.h"
#include "common/pace.h"
#include "common/region.h"
#include "native/threads.h"

namespace tvm_byoc_dnnl {

class SavedRegion {
 public:
  /// Throws Error(kGraph) if the artifact contradicts itself.
  explicit SavedRegion(Artifact artifact);

  const Artifact& artifact() const { return artifact_; }
  const Engine& engine() const { return engine_; }
  const Graph& graph() const { return region_.graph(); }
  Region& region() { return region_; }
  const Region& region() const { return region_; }

  /// As Region::Initialise; an error says if this CPU has other instructions than the build's.
  void Initialise(std::vector<ConstantData> constants);

  /// The plan for these values of the symbols (`whole`: not plans of smaller batches); nullptr
  /// before Initialise.
  std::shared_ptr<const Plan> PlanToRun(const std::vector<int64_t>& symbols, bool whole);

  /// Runs a call on as many threads as pay now; `plan_for` gives the plan for fewer.
  template <typename PlanForThreads>
  void Run(const Plan& plan, const std::vector<void*>& inputs, const std::vector<void*>& outputs,
           const PlanForThreads& plan_for) {
    const int all = engine_.Threads();
    const RunningCall call;
    const int granted = std::min(all, GrantedCores());
    const int threads = plan.pace().Next(granted, call.Allowed());
    std::optional<ScopedThreads> scope;
    std::shared_ptr<const Plan> fewer;
    if (threads < all) {
      scope.emplace(threads);
      fewer = plan_for();
    }
    if (threads < granted) ++narrowed_;
    const auto start = std::chrono::steady_clock::now();
    (fewer != nullptr ? *fewer : plan).Run(inputs, outputs);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (call.IsAlone()) late_ += plan.pace().Learn(threads, taken.count());
  }

  /// Calls that fewer threads would have answered sooner, and calls on fewer than they may use.
  int64_t late() const { return late_; }
  int64_t narrowed() const { return narrowed_; }

  /// What was counted of its plans and calls, as JSON.
  std::string Counters() const;

 private:
  const Artifact artifact_;
  const Engine& engine_;
  Region region_;
  std::atomic<int64_t> late_{0};
  std::atomic<int64_t> narrowed_{0};
};

}  // namespace tvm_byoc_dnnl
