// SPDX-License-Identifier: Apache-2.0
// Another library behind the seam: a reference for elementwise arithmetic, run by the common code.
#include "common/engine.h"

#include <cmath>

#include "check.h"
#include "common/region.h"
#include "common/support/error.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

class ReferencePlan final : public Plan {
 public:
  ReferencePlan(const Graph& graph, Shapes shapes, std::vector<const void*> constants)
      : Plan(std::move(shapes)), graph_(graph), constants_(std::move(constants)) {}

  void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const override {
    std::vector<std::vector<float>> values(graph_.tensors.size());
    auto read = [&](int tensor, const void* data) {
      const auto* first = static_cast<const float*>(data);
      values[tensor].assign(first, first + ElementCount(shapes()[tensor]));
    };
    for (size_t i = 0; i < inputs.size(); ++i) read(graph_.inputs[i].tensor, inputs[i]);
    for (size_t i = 0; i < constants_.size(); ++i) {
      read(graph_.constants[i].tensor, constants_[i]);
    }
    for (const Node& node : graph_.nodes) {
      std::vector<float> result = values[node.inputs[0]];
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = node.kind == Kind::kEltwise ? std::fabs(result[i])
                                                : result[i] + values[node.inputs[1]][i];
      }
      values[node.output] = result;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<float>& value = values[graph_.outputs[i]];
      std::copy(value.begin(), value.end(), static_cast<float*>(outputs[i]));
    }
  }
  json::Object Describe(const Graph& graph) const override {
    json::Object object;
    object.emplace_back("name", graph.name);
    return object;
  }
  json::Object Profile(const Graph& graph, const std::vector<void*>& inputs,
                       const std::vector<void*>& outputs) const override {
    Run(inputs, outputs);
    return Describe(graph);
  }
  size_t bytes() const override { return 0; }
  bool UsesConstant(size_t) const override { return true; }

 private:
  const Graph& graph_;
  const std::vector<const void*> constants_;
};

class ReferencePlanner final : public Planner {
 public:
  explicit ReferencePlanner(const Graph& graph) : graph_(graph) {}
  std::unique_ptr<Plan> MakePlan(const Shapes& shapes,
                                 const std::vector<const void*>& constants) override {
    for (const Node& node : graph_.nodes) {
      const bool known = (node.kind == Kind::kEltwise && node.attrs.alg == "abs") ||
                         (node.kind == Kind::kBinary && node.attrs.alg == "add");
      if (!known) Fail(ErrorKind::kUnsupported, DescribeNode(graph_, node, shapes));
    }
    return std::make_unique<ReferencePlan>(graph_, shapes, constants);
  }

 private:
  const Graph& graph_;
};

class ReferenceEngine final : public Engine {
 public:
  std::string Version() const override { return "reference 1"; }
  std::string Isa() const override { return "any"; }
  std::string HowToSetIsa() const override { return "nothing"; }
  json::Object Info() const override { return {}; }
  std::unique_ptr<Planner> NewPlanner(const Graph& graph) const override {
    return std::make_unique<ReferencePlanner>(graph);
  }
  json::Object Probe(const Graph&) const override { return {}; }
  std::string Emit(const Graph&, bool) const override {
    Fail(ErrorKind::kUnsupported, "no source");
  }
};

/// abs(x + c), with x [n, 3].
std::string GraphOf(const std::string& alg) {
  return R"({
  "format": "tvm_byoc_dnnl.graph", "version": 1, "name": "g",
  "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3]},
              {"name": "c", "dtype": "float32", "shape": [2, 3]},
              {"name": "t", "dtype": "float32", "shape": ["n", 3]},
              {"name": "y", "dtype": "float32", "shape": ["n", 3]}],
  "inputs": [{"tensor": 0}], "constants": [{"tensor": 1, "name": "c"}],
  "nodes": [{"kind": "binary", "inputs": [0, 1], "outputs": [2], "attrs": {"alg": "add"}},
            {"kind": "eltwise", "inputs": [2], "outputs": [3],
             "attrs": {"alg": ")" +
         alg + R"(", "alpha": 0, "beta": 0}}], "outputs": [3]})";
}

const Engine& Reference() {
  static const bool registered = [] {
    return RegisterEngine("reference", std::make_unique<ReferenceEngine>()), true;
  }();
  CHECK(registered);
  return FindEngine("reference");
}

}  // namespace

TEST(AnotherEngineRunsThroughTheCommonCode) {
  Region region(Reference(), GraphOf("abs"));
  CHECK(region.PlanFor({{2, 3}}) == nullptr);  // no constants yet
  auto c = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise({{c->data(), c}});
  std::vector<float> x = {-5, -5, -5, 1, 1, 1}, y(6);
  region.PlanFor({{2, 3}})->Run({x.data()}, {y.data()});
  CHECK(y == std::vector<float>({4, 3, 2, 5, 6, 7}));
}

TEST(WhatAnEngineCannotRunIsNamed) {
  Region region(Reference(), GraphOf("exp"));
  auto c = std::make_shared<std::vector<float>>(6, 1.0f);
  region.Initialise({{c->data(), c}});
  CHECK_THROWS(kUnsupported, "eltwise", region.PlanFor({{2, 3}}));
}

TEST(AnEngineThatIsNotThereIsNamedWithItsPath) {
  CHECK_THROWS(kLibrary, "libtvm_byoc_engine_npu.so", FindEngine("npu"));
  SetEngineHelp([](const std::string& name, const std::string&) { return "install " + name; });
  CHECK_THROWS(kLibrary, "install npu", FindEngine("npu"));
  SetEngineHelp(nullptr);
}

TEST(AnEnginesNameLeadsToNoOtherFolder) {
  CHECK_THROWS(kArtifact, "engine's name", FindEngine("../../evil"));
}
