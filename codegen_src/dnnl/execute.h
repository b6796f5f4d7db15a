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
  void Execute(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
               double* seconds) const;

  const Program program_;
  const std::vector<const void*> constants_;
  std::vector<byoc_buffer> buffers_;
  Packing packing_;
  mutable byoc_plan plan_;  // has a lock of its own
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EXECUTE_H_
