// SPDX-License-Identifier: Apache-2.0
// Batches of samples that a graph computes each for itself: the plans of smaller batches compute a
// larger one in parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/engine.h"
#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// The symbol that is the first dim of whatever depends on it, where every node computes each index
/// of that dim from this index of its operands alone. Nothing if that is not certain.
std::optional<int> FindBatch(const Graph& graph);

/// Whether to compute a batch in so many parts rather than to make a plan for it: each part reads
/// the constants again.
bool PaysInParts(const Graph& graph, size_t parts, const PlanSeconds& seconds);

/// A plan that runs others one after the other, each for some samples.
class PartsPlan final : public Plan {
 public:
  struct Part {
    int64_t samples;
    std::shared_ptr<const Plan> plan;
  };

  PartsPlan(const Graph& graph, int batch, Shapes shapes, std::vector<Part> parts);

  void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const override;
  json::Object Describe(const Graph& graph) const override;
  json::Object Profile(const Graph& graph, const std::vector<void*>& inputs,
                       const std::vector<void*>& outputs) const override;
  size_t bytes() const override { return 0; }
  bool UsesConstant(size_t index) const override;

 private:
  const std::vector<Part> parts_;
  std::vector<int64_t> input_bytes_, output_bytes_;  // of a sample; 0: the same for all
};

}  // namespace tvm_byoc_dnnl
