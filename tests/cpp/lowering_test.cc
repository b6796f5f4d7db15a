// SPDX-License-Identifier: Apache-2.0
// What the lowering decides: which layouts, which reorders, what happens in place. Numbers are
// checked from Python.
#include "dnnl/lowering.h"

#include <algorithm>
#include <functional>
#include <set>

#include "check.h"
#include "dnnl/execute.h"
#include "machines.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

constexpr const char* kConv3x3 =
    R"({"strides":[1,1],"dilations":[1,1],"pad_begin":[1,1],"pad_end":[1,1]})";

/// x [1, 64, 8, 8] and weights [64, 64, 3, 3] are tensors 0 and 1; then one [1, 64, 8, 8] per node.
std::string Network(const std::vector<std::string>& nodes, const std::string& outputs) {
  std::string tensors = R"({"name":"x","dtype":"float32","shape":[1,64,8,8]},)"
                        R"({"name":"w","dtype":"float32","shape":[64,64,3,3]})";
  std::string list;
  for (size_t i = 0; i < nodes.size(); ++i) {
    tensors += R"(,{"name":"t","dtype":"float32","shape":[1,64,8,8]})";
    list += (i > 0 ? "," : "") + nodes[i];
  }
  return R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)" + tensors +
         R"(],"inputs":[{"tensor":0}],"constants":[{"tensor":1,"name":"c"}],"nodes":[)" + list +
         R"(],"outputs":)" + outputs + "}";
}

std::string Conv(int src, int out, int operand = -1) {
  std::string inputs = "[" + std::to_string(src) + ",1";
  std::string post_ops = "[]";
  if (operand >= 0) {
    inputs += "," + std::to_string(operand);
    post_ops = R"([{"kind":"binary","alg":"add","input":2}])";
  }
  return R"({"kind":"convolution","inputs":)" + inputs + R"(],"outputs":[)" + std::to_string(out) +
         R"(],"attrs":)" + kConv3x3 + R"(,"post_ops":)" + post_ops + "}";
}

std::string Relu(int src, int out) {
  return R"({"kind":"eltwise","inputs":[)" + std::to_string(src) + R"(],"outputs":[)" +
         std::to_string(out) + R"(],"attrs":{"alg":"relu","alpha":0,"beta":0}})";
}

Program LowerOn(const Machine& machine, const Graph& graph, const CostModel& cost = DefaultCost) {
  return Lowering(graph, Specialise(graph, {}), cost, machine).Run();
}

Program LowerOn(const Machine& machine, const std::string& json) {
  return LowerOn(machine, ParseGraph(json));
}

/// Calls `test` with a machine of each instruction set.
void OnEach(const std::function<void(const Machine&)>& test) {
  for (dnnl::cpu_isa set : machines::kAll) {
    const Machine machine = machines::WithIsa(set);
    const check::Scope scope(machine.isa.Name());
    test(machine);
  }
}

/// Calls it with this machine as well: what must hold whatever oneDNN answers.
void Everywhere(const std::function<void(const Machine&)>& test) {
  test(Machine());
  OnEach(test);
}

bool HasSum(const Program& program, int node) {
  for (const Step& step : program.steps) {
    if (step.node != node || step.conversion) continue;
    return std::any_of(step.op.post_ops.begin(), step.op.post_ops.end(),
                       [](const PostOpDesc& p) { return p.kind == PostOpDesc::Kind::kSum; });
  }
  return false;
}

int BufferOf(const Step& step, int arg) {
  for (const StepArg& a : step.args) {
    if (a.arg == arg) return a.place.buffer;
  }
  return -1;
}

}  // namespace

TEST(WeightsArePackedAtInitialisation) {
  Everywhere([](const Machine& machine) {
    const Program program = LowerOn(machine, Network({Conv(0, 2)}, "[2]"));
    CHECK(std::all_of(program.init.begin(), program.init.end(),
                      [](const Step& step) { return step.conversion; }));
    for (const Step& step : program.steps) {
      for (const StepArg& arg : step.args) {
        CHECK(arg.arg != DNNL_ARG_WEIGHTS ||
              program.buffers[arg.place.buffer].home == Home::kPacked);
      }
    }
  });
}

TEST(OneReorderPerLayout) {
  Everywhere([](const Machine& machine) {
    const Program program =
        LowerOn(machine, Network({Conv(0, 2), Conv(0, 3), Conv(0, 4)}, "[2,3,4]"));
    auto reorders_of_input =
        std::count_if(program.steps.begin(), program.steps.end(), [&](const Step& step) {
          return step.conversion &&
                 program.buffers[BufferOf(step, DNNL_ARG_FROM)].home == Home::kInput;
        });
    CHECK(reorders_of_input <= 1);
  });
}

TEST(DyingTemporaryIsSummedInPlace) {
  OnEach([](const Machine& machine) {
    const Program program =
        LowerOn(machine, Network({Conv(0, 2), Conv(2, 3), Conv(3, 4, 2), Conv(4, 5)}, "[5]"));
    CHECK(HasSum(program, 2));
  });
}

TEST(WhatMustSurviveIsNotSummedInto) {
  Everywhere([](const Machine& machine) {
    // read later
    CHECK(!HasSum(
        LowerOn(machine, Network({Conv(0, 2), Conv(2, 3), Conv(3, 4, 2), Conv(4, 5, 2)}, "[5]")),
        2));
    // an output
    CHECK(!HasSum(
        LowerOn(machine, Network({Conv(0, 2), Conv(2, 3), Conv(3, 4, 2), Conv(4, 5)}, "[5,2]")),
        2));
    // the convolution's own source
    CHECK(!HasSum(LowerOn(machine, Network({Conv(0, 2), Conv(2, 3, 2), Conv(3, 4)}, "[4]")), 1));
  });
}

TEST(TheCallersInputIsNeverWritten) {
  Everywhere([](const Machine& machine) {
    for (const std::string& json : {Network({Conv(0, 2), Conv(2, 3, 0), Conv(3, 4)}, "[4]"),
                                    Network({Relu(0, 2), Conv(2, 3, 0)}, "[3]")}) {
      const Program program = LowerOn(machine, json);
      for (const Step& step : program.steps) {
        CHECK(program.buffers[BufferOf(step, DNNL_ARG_DST)].home != Home::kInput);
      }
    }
  });
}

TEST(ElementwiseRunsInPlaceOnTemporariesOnly) {
  Everywhere([](const Machine& machine) {
    const Program program = LowerOn(machine, Network({Conv(0, 2), Relu(2, 3), Conv(3, 4)}, "[4]"));
    for (const Step& step : program.steps) {
      if (step.node == 1) {
        CHECK_EQUAL(BufferOf(step, DNNL_ARG_SRC), BufferOf(step, DNNL_ARG_DST));
      }
    }
    const Program input = LowerOn(machine, Network({Relu(0, 2)}, "[2]"));
    CHECK_EQUAL(input.steps.size(), 1u);
    CHECK(input.buffers[BufferOf(input.steps[0], DNNL_ARG_SRC)].home == Home::kInput);
    CHECK(input.buffers[BufferOf(input.steps[0], DNNL_ARG_DST)].home == Home::kOutput);
    CHECK_EQUAL(input.arena_bytes, 0);
  });
}

TEST(TheCheapestCandidateIsTaken) {
  // A resampling may run on its source as it lies, with the channels innermost, or row-major.
  const Graph graph = ParseGraph(Network(
      {R"({"kind":"resampling","inputs":[0],"outputs":[2],"attrs":{"alg":"nearest"}})"}, "[2]"));
  auto source_is_dense = [&](const CostModel& cost) {
    for (const Step& step : LowerOn(Machine(), graph, cost).steps) {
      if (step.conversion) continue;
      return IsDense(step.op.Find(DNNL_ARG_SRC)->md);
    }
    return false;
  };
  CHECK(source_is_dense(DefaultCost));  // the first, since all are real implementations
  CHECK(!source_is_dense([](const Candidate& choice, const Machine&) {
    return IsDense(choice.op.Find(DNNL_ARG_SRC)->md) ? 2.0 : 1.0;
  }));
}

/// Lowers under a cost, and lists the candidates that it was asked for.
std::string NameOfConvolution(const Machine& machine, const Graph& graph, const CostModel& cost,
                              std::vector<std::pair<std::string, std::string>>* asked = nullptr) {
  auto listed = [&](const Candidate& candidate, const Machine& on) {
    if (asked != nullptr) asked->emplace_back(WorkloadKey(candidate.op), CandidateName(candidate));
    return cost(candidate, on);
  };
  for (const Step& step : LowerOn(machine, graph, listed).steps) {
    if (!step.conversion && step.node == 0) return step.impl;
  }
  return "";
}

TEST(GroupsOfFewChannelsAreNotUnfolded) {
  const Graph graph = ParseGraph(
      R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)"
      R"({"name":"x","dtype":"float32","shape":[1,24,16,16]},)"
      R"({"name":"w","dtype":"float32","shape":[4,28,6,1,1]},)"
      R"({"name":"t","dtype":"float32","shape":[1,112,16,16]}],)"
      R"("inputs":[{"tensor":0}],"constants":[{"tensor":1,"name":"c"}],)"
      R"("nodes":[{"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":[1,1],)"
      R"("dilations":[1,1],"pad_begin":[0,0],"pad_end":[0,0]}}],"outputs":[2]})");
  OnEach([&](const Machine& machine) {
    if (!machine.isa.Vectors()) return;
    const std::string name = NameOfConvolution(machine, graph, DefaultCost);
    CHECK(name.find("gemm") == std::string::npos);
  });
}

/// Channels shuffled in front of a depthwise convolution, and groups of 6 channels behind it, whose
/// result is tensor 6. `post_ops` are those of the depthwise one.
Graph ShuffledUnit(const std::string& outputs, const std::string& inputs = "[2,3]",
                   const std::string& post_ops = "[]") {
  const auto tensor = [](const std::string& shape) {
    return R"({"name":"t","dtype":"float32","shape":)" + shape + "}";
  };
  const std::string attrs =
      R"({"strides":[1,1],"dilations":[1,1],"pad_begin":[0,0],"pad_end":[0,0]})";
  const std::string whole = tensor("[1,24,16,16]"), inner = tensor("[1,24,14,14]");
  return ParseGraph(R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)" +
                    whole + "," + inner + "," + whole + "," + tensor("[24,1,1,3,3]") + "," + inner +
                    "," + tensor("[4,7,6,1,1]") + "," + tensor("[1,28,14,14]") +
                    R"(],"inputs":[{"tensor":0},{"tensor":1}],)"
                    R"("constants":[{"tensor":3,"name":"c"},{"tensor":5,"name":"d"}],"nodes":[)"
                    R"({"kind":"shuffle","inputs":[0],"outputs":[2],)"
                    R"("attrs":{"axis":1,"group_size":6}},)"
                    R"({"kind":"convolution","inputs":)" +
                    inputs + R"(,"outputs":[4],"attrs":)" + attrs + R"(,"post_ops":)" + post_ops +
                    R"(},{"kind":"convolution","inputs":[4,5],"outputs":[6],"attrs":)" + attrs +
                    R"(}],"outputs":)" + outputs + "}");
}

/// Steps that move channels of this graph: none, where the convolutions read them shuffled.
int64_t Moves(const Machine& machine, const Graph& graph) {
  const Program program = LowerOn(machine, graph);
  return std::count_if(program.steps.begin(), program.steps.end(), [](const Step& step) {
    const OpArg* src = step.op.Find(DNNL_ARG_SRC);
    return step.op.kind == dnnl::primitive::kind::shuffle ||
           (step.conversion && src != nullptr && src->md.get_ndims() > 4);
  });
}

TEST(ChannelsAreShuffledByTheKernelThatReadsThem) {
  const Machine machine = machines::WithIsa(dnnl::cpu_isa::avx2);
  CHECK_EQUAL(Moves(machine, ShuffledUnit("[6]")), 0);
  const std::string relu = R"([{"kind":"eltwise","alg":"relu","alpha":0,"beta":0}])";
  CHECK_EQUAL(Moves(machine, ShuffledUnit("[6]", "[2,3]", relu)), 0);
}

TEST(WhatAnotherReaderNeedsShuffledIsShuffled) {
  const std::string add = R"([{"kind":"binary","alg":"add","input":2}])";  // in the order of before
  OnEach([&](const Machine& machine) {
    CHECK_EQUAL(Moves(machine, ShuffledUnit("[6,2]")), 1);
    CHECK_EQUAL(Moves(machine, ShuffledUnit("[6,4]")), 1);
    CHECK_EQUAL(Moves(machine, ShuffledUnit("[6]", "[2,3,1]", add)), 1);
  });
}

TEST(LrnBehindBlocksOfChannelsTakesChannelsLastOnAvx2) {
  const Graph graph = ParseGraph(
      R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)"
      R"({"name":"x","dtype":"float32","shape":[1,3,57,57]},)"
      R"({"name":"w","dtype":"float32","shape":[96,3,7,7]},)"
      R"({"name":"s","dtype":"float32","shape":[1,96,57,57]},)"
      R"({"name":"t","dtype":"float32","shape":[1,96,57,57]}],)"
      R"("inputs":[{"tensor":0}],"constants":[{"tensor":1,"name":"c"}],)"
      R"("nodes":[{"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":[1,1],)"
      R"("dilations":[1,1],"pad_begin":[3,3],"pad_end":[3,3]}},)"
      R"({"kind":"lrn","inputs":[2],"outputs":[3],"attrs":{"alg":"across_channels",)"
      R"("local_size":5,"alpha":0.0001,"beta":0.75,"k":1.0}}],"outputs":[3]})");
  for (const Step& step : LowerOn(machines::WithIsa(dnnl::cpu_isa::avx2), graph).steps) {
    if (step.node == 1 && !step.conversion) CHECK(IsStrided(step.op.Find(DNNL_ARG_SRC)->md));
  }
}

TEST(WeightsArePackedAgainOnlyForMuch) {
  const Graph graph = ParseGraph(Network({Conv(0, 2)}, "[2]"));
  PackedStore store;
  std::vector<std::shared_ptr<AlignedBuffer>> held;
  auto lower = [&](double cost_of_kernel, bool reuses, double* excess) {
    const auto cost = [&](const Candidate& candidate, const Machine&) {
      return candidate.call ? cost_of_kernel : 1.0;
    };
    Lowering lowering(graph, Specialise(graph, {}), cost, machines::WithIsa(dnnl::cpu_isa::avx2));
    lowering.Share(&store, reuses);
    Program program = lowering.Run();
    *excess = lowering.Excess();
    return program;
  };
  auto has_kernel = [](const Program& program) {
    return std::any_of(program.steps.begin(), program.steps.end(),
                       [](const Step& step) { return step.kernel != nullptr; });
  };
  double excess = 0;
  CHECK(has_kernel(lower(0.5, false, &excess)));
  const Program first = lower(2, true, &excess);
  CHECK(!has_kernel(first));
  CHECK_EQUAL(excess, 0.0);
  for (const PackedKey& key : first.packed) {
    held.push_back(std::make_shared<AlignedBuffer>(64));
    store.Insert(key, held.back());
  }
  CHECK(!has_kernel(lower(0.75, true, &excess)));
  CHECK_EQUAL(excess, 0.25);
  CHECK(has_kernel(lower(0.75, false, &excess)));
  CHECK(has_kernel(lower(0.25, true, &excess)));
  CHECK_EQUAL(excess, 0.0);
}

TEST(OneCostRanksPrimitivesAndKernels) {
  const Graph graph = ParseGraph(Network({Conv(0, 2)}, "[2]"));
  for (dnnl::cpu_isa set : machines::kAll) {
    const Machine machine = machines::WithIsa(set);
    const check::Scope scope(machine.isa.Name());
    std::vector<std::pair<std::string, std::string>> asked;
    const auto prefers = [&](bool kernels) {
      return NameOfConvolution(
          machine, graph,
          [=](const Candidate& candidate, const Machine&) {
            return candidate.call.has_value() == kernels ? 1.0 : 2.0;
          },
          &asked);
    };
    CHECK(prefers(false).find("winograd") == std::string::npos);
    CHECK_EQUAL(prefers(true).find("winograd_4x4:") == 0, machine.isa.Vectors().has_value());
    std::set<std::string> keys, names;  // a database of measurements finds a candidate by both
    for (const auto& [key, name] : asked) {
      if (key.find("reorder") == 0) continue;
      keys.insert(key);
      names.insert(name);
    }
    CHECK_EQUAL(keys.size(), 1u);
    CHECK(keys.begin()->find("convolution") == 0);
    // A primitive, and kernels whose names tell them apart: choice_test lists them.
    CHECK_EQUAL(names.size(), !machine.isa.Vectors() ? 1u : machine.isa.HasTiles() ? 5u : 4u);
  }
}

TEST(WeightsArePackedASecondTimeOnlyForMuchLessTime) {
  const Graph graph = ParseGraph(Network({Conv(0, 2)}, "[2]"));
  const Shapes shapes = Specialise(graph, {});
  const std::vector<float> weights(64 * 64 * 9);
  PackedStore store;
  auto lowered = [&](double of_kernel, double of_primitive) {
    Program program;
    for (bool reuses : {true, false}) {  // as the planner does
      Lowering lowering(graph, shapes, [=](const Candidate& candidate, const Machine&) {
        return candidate.call ? of_kernel : of_primitive;
      });
      lowering.Share(&store, reuses);
      program = lowering.Run();
      if (lowering.Excess() <= 0.05) break;
    }
    return program;
  };
  const DnnlPlan plan(lowered(1, 2), shapes, {weights.data()}, &store);
  const std::string held = plan.program().steps.back().impl;
  if (held.find("winograd") != 0) return;  // a CPU without AVX2
  CHECK_EQUAL(lowered(1.05, 1).steps.back().impl, held);
  CHECK(lowered(1.2, 1).steps.back().impl.find("winograd") != 0);
  CHECK_EQUAL(store.FormsOf(1).size(), 1u);
  const DnnlPlan same(lowered(1, 2), shapes, {weights.data()}, &store);
  CHECK_EQUAL(store.FormsOf(1).size(), 1u);  // the same memory is listed once
}

TEST(NodesThatLeadNowhereAreNotRun) {
  Everywhere([](const Machine& machine) {
    const Program program = LowerOn(machine, Network({Relu(0, 2), Conv(0, 3)}, "[2]"));
    CHECK_EQUAL(program.steps.size(), 1u);
    CHECK(program.init.empty());
  });
}

TEST(MissingImplementationsNameTheNode) {
  std::string json = Network({Relu(0, 2)}, "[2]");
  for (size_t at; (at = json.find("float32")) != std::string::npos;) json.replace(at, 7, "float64");
  CHECK_THROWS(kUnsupported, "float64", LowerOn(Machine(), json));
}

TEST(EqualDescriptionsAreAskedAboutOnce) {
  DescriptorCache cache(2);
  int asked = 0;
  auto ask_of = [&](const MemoryDesc& source, float alpha) {
    OpDesc op;
    op.kind = dnnl::primitive::kind::eltwise;
    op.alg = dnnl::algorithm::eltwise_linear;
    op.alpha = alpha;
    op.args = {{DNNL_ARG_SRC, 0, source}};
    cache.Get(op, [&] {
      ++asked;
      return PrimitiveDesc();
    });
  };
  auto ask = [&](const Dims& shape, float alpha) { ask_of(Dense(shape, DType::kFloat32), alpha); };
  ask({2, 3}, 1);
  ask({2, 3}, 1);
  CHECK_EQUAL(asked, 1);
  ask({3, 2}, 1);
  CHECK_EQUAL(asked, 2);
  ask({2, 3}, 2);  // the cache is full: it starts again
  CHECK_EQUAL(asked, 3);
  CHECK_EQUAL(cache.size(), 1u);
  // Equal for oneDNN, which chooses other implementations for them.
  ask_of(Dense({1, 5}, DType::kFloat32), 1);
  ask_of(Ordered({1, 5}, DType::kFloat32, {1, 0}), 1);
  CHECK_EQUAL(asked, 5);
  cache.Clear();
  CHECK_EQUAL(cache.size(), 0u);
  ask({2, 3}, 2);
  CHECK_EQUAL(asked, 6);
}
