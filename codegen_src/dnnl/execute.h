// SPDX-License-Identifier: Apache-2.0
// A program as a plan of the executor, which emitted source uses as well.
#ifndef TVM_BYOC_DNNL_DNNL_EXECUTE_H_
#define TVM_BYOC_DNNL_DNNL_EXECUTE_H_

#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "byoc_plan.h"
#include "common/engine.h"
#include "dnnl/constants.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

/// The only CPU engine of the process.
const dnnl::engine& CpuEngine();

class DnnlPlan final : public Plan {
 public:
  /// Creates the primitives and packs the constants.
  DnnlPlan(Program program, Shapes shapes, const std::vector<const void*>& constants,
           PackedStore* store);
  ~DnnlPlan() override;

  void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const override;
  json::Object Describe(const Graph& graph) const override;
  json::Object Profile(const Graph& graph, const std::vector<void*>& inputs,
                       const std::vector<void*>& outputs) const override;
  size_t bytes() const override;
  bool UsesConstant(size_t index) const override;

  /// Notes the seconds of each step, unless there is no place for them.
  void Execute(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
               double* seconds) const;

  const Program& program() const { return program_; }
  size_t packed_bytes() const;

 private:
  /// The constants packed, some of which other plans may have packed already.
  struct Packing {
    const Program& program;
    const std::vector<const void*>& constants;
    PackedStore* store;
    std::vector<std::shared_ptr<AlignedBuffer>> buffers;  // by index of the kPacked buffers

    char* Take(int buffer, size_t bytes, int* ready);
    void Drop(int buffer);
  };

  int Build();
  int AddStep(const Step& step, byoc_step* to, bool once);

  const Program program_;
  const std::vector<const void*> constants_;
  std::vector<byoc_buffer> buffers_;
  Packing packing_;
  mutable byoc_plan plan_;  // has a lock of its own
};

// Programs and probes as JSON, for people and for the partitioner (report.cc).

/// The steps of a plan with their implementations and layouts, and the memory that it takes.
json::Object DescribePlan(const Graph& graph, const DnnlPlan& plan);

/// The steps of a plan with the seconds that each took.
json::Object DescribeProfile(const Graph& graph, const DnnlPlan& plan,
                             const std::vector<double>& seconds);

/// Whether every node has a real implementation on this machine; plans without constant values.
json::Object ProbeGraph(const Graph& graph, const CostModel& cost);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EXECUTE_H_
