// SPDX-License-Identifier: Apache-2.0
// A program made executable. A plan is immutable and shared by threads; every call takes a context
// of its own.
#ifndef TVM_BYOC_DNNL_DNNL_EXECUTE_H_
#define TVM_BYOC_DNNL_DNNL_EXECUTE_H_

#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <vector>

#include "common/engine.h"
#include "dnnl/constants.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

/// The one CPU engine of the process.
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
  bool UsesConstant(size_t index) const override;

  const Program& program() const { return program_; }
  size_t packed_bytes() const;

 private:
  class Context;

  void Pack(PackedStore* store);
  std::vector<std::vector<int>> LastUses(const std::vector<bool>& run) const;
  void RunInitStep(const Step& step, dnnl_stream_t stream) const;
  char* ConstantBase(const Buffer& buffer) const;
  std::unique_ptr<Context> Acquire() const;
  void Release(std::unique_ptr<Context> context) const;

  Program program_;
  std::vector<const void*> constants_;
  std::vector<std::shared_ptr<AlignedBuffer>> packed_;  // by index of the kPacked buffers
  std::vector<dnnl::primitive> primitives_;             // by step; empty for fills

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Context>> free_contexts_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EXECUTE_H_
