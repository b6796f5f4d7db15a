// SPDX-License-Identifier: Apache-2.0
// The seam between what is common (graphs, saved modules, weights, calls) and a library that
// computes: an engine plans portable graphs, and lies in a shared library of its own.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/graph.h"
#include "common/growth.h"
#include "common/pace.h"
#include "common/support/json.h"

struct byoc_attention_params;

namespace tvm_byoc_dnnl {

/// A graph with static shapes that can run. It does not change; any number of threads may run it.
class Plan {
 public:
  explicit Plan(Shapes shapes, double expected_seconds = std::numeric_limits<double>::infinity())
      : shapes_(std::move(shapes)), pace_(expected_seconds) {}
  virtual ~Plan() = default;

  /// Pointers per input of the graph (unused for shape arguments) and per output.
  virtual void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const = 0;

  /// The steps with their implementations and layouts, and the memory that they take.
  virtual json::Object Describe(const Graph& graph) const = 0;

  /// Runs, and returns the steps with the seconds that each took.
  virtual json::Object Profile(const Graph& graph, const std::vector<void*>& inputs,
                               const std::vector<void*>& outputs) const = 0;

  /// Estimated bytes of the plan, without the memory that it shares with other plans.
  virtual size_t bytes() const = 0;

  /// Whether calls read this constant; the others may be released when the plan has been made.
  virtual bool UsesConstant(size_t index) const = 0;

  const Shapes& shapes() const { return shapes_; }

  /// What its calls took so far, and how many threads the next one uses.
  Pace& pace() const { return pace_; }

 private:
  const Shapes shapes_;
  mutable Pace pace_;
};

/// Makes the plans of one graph, which share what they can: constants in the layouts of the
/// library.
class Planner {
 public:
  virtual ~Planner() = default;

  /// `constants`: in the order of the graph's; those that the plan uses must outlive it.
  /// Throws Error(kUnsupported) naming the node that the library cannot run here.
  virtual std::unique_ptr<Plan> MakePlan(const Shapes& shapes,
                                         const std::vector<const void*>& constants) = 0;

  /// The same for caches of any length up to the one that the shapes have. Their outputs hold the
  /// rows so far, which are not read from the inputs, and have room for all; other inputs have the
  /// real length. The plan takes the address of that length (one int64) behind its inputs.
  virtual std::unique_ptr<Plan> MakeGrowingPlan(const Shapes& shapes,
                                                const std::vector<const void*>& constants,
                                                const Growth& growth);
};

/// What plans cost: to make one and to start it, for each node, and to read a byte of weights.
struct PlanSeconds {
  double plan = 0, start = 0, byte = 0;
};

/// A library that computes.
class Engine {
 public:
  virtual ~Engine() = default;

  /// For messages and saved modules: the library and its version, the instruction set that it uses
  /// here, and how a user sets another one.
  virtual std::string Version() const = 0;
  virtual std::string Isa() const = 0;
  virtual std::string HowToSetIsa() const = 0;

  /// Facts for people and tools: `library` and its `file`, `version`, `hash`, `cpu_runtime`, `isa`,
  /// the dtypes that are `computed_in_float32` here, and the `machine` by whose rates it chooses.
  virtual json::Object Info() const = 0;

  /// The threads that a call from this thread would use. A plan is for as many as there are when it
  /// is made.
  virtual int Threads() const { return 1; }

  /// By which a batch is computed in parts, rather than by a plan of its own; by default it is not.
  virtual PlanSeconds SecondsOfPlans() const { return {}; }

  /// What its choices depend on besides.
  virtual std::string ChoosesBy() const { return ""; }

  /// Where measured times hold: library, instruction set, threads, and what it chooses by.
  std::string Setting() const;

  /// Measures the candidates of each workload of a static graph: they take turns `rounds` times.
  /// Without rounds it only names them. Nothing by default.
  virtual KnownTimes MeasureCandidates(const Graph& graph, int rounds) const;

  /// What the choice among the candidates of a static graph's workloads follows from, to fit it:
  /// {workload: {candidate: {...}}} in the engine's own terms. Nothing by default.
  virtual json::Object DescribeCosts(const Graph& /*graph*/) const { return {}; }

  /// `graph` must outlive the planner.
  virtual std::unique_ptr<Planner> NewPlanner(const Graph& graph) const = 0;

  /// Whether the library runs every node of a static graph on this machine, and how.
  virtual json::Object Probe(const Graph& graph) const = 0;

  /// Gives back what is kept for plans that may be made later. Plans stay as they are.
  virtual void Forget() const {}

  /// Whether planners make growing plans of this graph, which has such caches, here.
  virtual bool Grows(const Graph& /*graph*/, const Growth& /*growth*/) const { return false; }

  /// Attention outside of a graph, as the kernel of byoc_attention.h computes it: its parameters
  /// but for the instruction set and the threads, and its data. False if there is no such kernel
  /// here.
  virtual bool Attend(const byoc_attention_params& /*params*/, void* const* /*data*/) const {
    return false;
  }

  /// A static graph as C source: a function of TVM, or stand-alone.
  virtual std::string Emit(const Graph& graph, bool as_function) const = 0;
};

/// The engine of this name: one that was registered, else out of `libtvm_byoc_engine_<name>.so`
/// beside our own library. Throws Error(kLibrary) if that cannot be loaded.
const Engine& FindEngine(const std::string& name);

/// Engine::Forget of every engine that is loaded.
void ForgetAll();

void RegisterEngine(const std::string& name, std::unique_ptr<const Engine> engine);

/// The function that an engine's library exports; it makes the engine.
extern "C" const Engine* TvmByocEngine();
constexpr const char* kEngineEntry = "TvmByocEngine";
using EngineEntry = decltype(&TvmByocEngine);

/// Asked when an engine's library cannot be loaded, with its name and the linker's message.
/// May map what is missing, so that another attempt succeeds; returns where it has searched and
/// what to do, for the message.
using EngineHelp = std::string (*)(const std::string& name, const std::string& error);
void SetEngineHelp(EngineHelp help);

}  // namespace tvm_byoc_dnnl
