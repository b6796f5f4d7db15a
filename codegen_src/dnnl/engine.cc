// SPDX-License-Identifier: Apache-2.0
#include "common/engine.h"

#include <dlfcn.h>
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/support/each.h"
#include "common/support/error.h"
#include "dnnl/candidate.h"
#include "dnnl/emit.h"
#include "dnnl/execute.h"
#include "dnnl/kinds.h"
#include "dnnl/machine.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {
namespace {

/// Runs `body`; turns oneDNN's exceptions into those that the common code knows.
template <typename Body>
auto Translated(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    throw std::runtime_error(
        Cat("oneDNN failed with status ", static_cast<int>(error.status), ": ", error.what()));
  }
}

std::string VersionText() {
  const dnnl_version_t* version = dnnl_version();
  return Cat(version->major, ".", version->minor, ".", version->patch);
}

/// The file of libdnnl that this process uses.
void CheckVersion() {
  const dnnl_version_t* version = dnnl_version();
  if (version->major == 3 && version->minor >= 2) return;
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&dnnl_version), &info);
  Fail(ErrorKind::kLibrary, "oneDNN ", VersionText(), " is loaded (",
       info.dli_fname == nullptr ? "from an unknown file" : info.dli_fname,
       "), expected 3.2 or newer, below 4: pip install onednn-cpu-gomp==2023.2.0, and keep other ",
       "versions of libdnnl.so.3 off LD_LIBRARY_PATH and LD_PRELOAD");
}

/// By the times that the graph brings where they were measured in this engine's setting.
CostModel CostOf(const Graph& graph, const Engine& engine) {
  return CostByTimes(graph.times, engine.Setting());
}

/// Has oneDNN generate the code of all primitives on all threads, and keep it until each is made.
void GenerateCode(const std::vector<Step>& steps) {
  std::set<const_dnnl_primitive_desc_t> distinct;
  for (const Step& step : steps) {
    if (step.kernel == nullptr) distinct.insert(step.pd.get());
  }
  const std::vector<const_dnnl_primitive_desc_t> primitives(distinct.begin(), distinct.end());
  ForEach(primitives.size(), [&](size_t i) {  // what fails fails again where it is needed
    dnnl_primitive_t primitive = nullptr;
    if (dnnl_primitive_create(&primitive, primitives[i]) == dnnl_success) {
      dnnl_primitive_destroy(primitive);
    }
  });
}

class DnnlPlanner final : public Planner {
 public:
  DnnlPlanner(const Engine& engine, const Graph& graph) : engine_(engine), graph_(graph) {}

  std::unique_ptr<Plan> MakePlan(const Shapes& shapes,
                                 const std::vector<const void*>& constants) override {
    return Make(shapes, constants, nullptr);
  }

  std::unique_ptr<Plan> MakeGrowingPlan(const Shapes& shapes,
                                        const std::vector<const void*>& constants,
                                        const Growth& growth) override {
    return Make(shapes, constants, &growth);
  }

 private:
  std::unique_ptr<Plan> Make(const Shapes& shapes, const std::vector<const void*>& constants,
                             const Growth* growth) {
    return Translated([&] {
      std::optional<Program> program = Lower(shapes, growth, /*reuses=*/true);
      if (!program) program = Lower(shapes, growth, /*reuses=*/false);
      return std::make_unique<DnnlPlan>(std::move(*program), shapes, constants, &store_);
    });
  }

  /// Nothing if weights that are packed already would make calls noticeably slower.
  std::optional<Program> Lower(const Shapes& shapes, const Growth* growth, bool reuses) {
    Lowering lowering(graph_, shapes, CostOf(graph_, engine_));
    lowering.Share(&store_, reuses);
    if (growth != nullptr) lowering.Grow(*growth);
    Program program = lowering.Run();
    if (reuses && lowering.Excess() > lowering.machine().Limit("excess")) return std::nullopt;
    GenerateCode(program.steps);
    return program;
  }

  const Engine& engine_;
  const Graph& graph_;
  PackedStore store_;
};

class DnnlEngine final : public Engine {
 public:
  DnnlEngine() { CheckVersion(); }

  std::string Version() const override { return "oneDNN " + VersionText(); }
  std::string Isa() const override { return Machine().isa.Name(); }
  std::string HowToSetIsa() const override { return "ONEDNN_MAX_CPU_ISA"; }

  json::Object Info() const override {
    const Described& here = DescribedHere();
    const json::Object machine = {
        {"name", here.name}, {"file", here.file}, {"rates", here.source}, {"hash", here.hash}};
    json::Array widened;
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      if (Machine().isa.ComputedIn(dtype) != dtype) widened.emplace_back(Name(dtype));
    }
    return {{"library", "oneDNN"},
            {"file", "libdnnl.so.3"},
            {"version", VersionText()},
            {"hash", dnnl_version()->hash},
            {"cpu_runtime", TVM_BYOC_DNNL_CPU_RUNTIME},
            {"isa", Isa()},
            {"machine", machine},
            {"computed_in_float32", std::move(widened)}};
  }

  std::string ChoosesBy() const override { return "rates " + DescribedHere().hash; }

  int Threads() const override { return omp_get_max_threads(); }

  PlanSeconds SecondsOfPlans() const override {
    const Rates& rates = *DescribedHere().rates;
    return {1e-6 * rates.Limit("plan_us"), 1e-6 * rates.Limit("start_us"),
            1e-12 * rates.Limit("byte_ps")};
  }

  std::unique_ptr<Planner> NewPlanner(const Graph& graph) const override {
    return std::make_unique<DnnlPlanner>(*this, graph);
  }

  KnownTimes MeasureCandidates(const Graph& graph, int rounds) const override {
    KnownTimes times = Translated([&] { return MeasureProducts(graph, rounds); });
    times.setting = Setting();
    return times;
  }

  json::Object DescribeCosts(const Graph& graph) const override {
    return Translated([&] { return CostsOfProducts(graph); });
  }

  void Forget() const override { ForgetOneDnn(); }

  bool Grows(const Graph& graph, const Growth& growth) const override {
    const Machine machine;
    return machine.isa.Vectors().has_value() &&
           std::all_of(growth.masks.begin(), growth.masks.end(), [&](int mask) {
             const DType dtype = graph.tensors[graph.inputs[mask].tensor].dtype;
             return machine.isa.ComputedIn(dtype) == dtype;
           });
  }

  json::Object Probe(const Graph& graph) const override {
    return Translated([&] { return ProbeGraph(graph, CostOf(graph, *this)); });
  }

  bool Attend(const byoc_attention_params& params, void* const* data) const override {
    return RunAttention(params, data, Threads());
  }

  std::string Emit(const Graph& graph, bool as_function) const override {
    return Translated([&] {
      const Program program = Lowering(graph, Specialise(graph, {}), CostOf(graph, *this)).Run();
      return EmitSource(graph, program, as_function);
    });
  }
};

}  // namespace

/// Throws Error(kLibrary) if the oneDNN of this process is of a version that we do not know.
extern "C" __attribute__((visibility("default"))) const Engine* TvmByocEngine() {
  return new DnnlEngine;
}

}  // namespace tvm_byoc_dnnl
