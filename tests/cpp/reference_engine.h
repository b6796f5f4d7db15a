// SPDX-License-Identifier: Apache-2.0
// A library behind the seam: a reference for elementwise arithmetic, float32.
#ifndef TVM_BYOC_DNNL_TESTS_REFERENCE_ENGINE_H_
#define TVM_BYOC_DNNL_TESTS_REFERENCE_ENGINE_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {

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
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph_.inputs[i].tensor >= 0) read(graph_.inputs[i].tensor, inputs[i]);
    }
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

inline const Engine& Reference() {
  static const bool registered = [] {
    return RegisterEngine("reference", std::make_unique<ReferenceEngine>()), true;
  }();
  (void)registered;
  return FindEngine("reference");
}

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_TESTS_REFERENCE_ENGINE_H_
