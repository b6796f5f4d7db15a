// SPDX-License-Identifier: Apache-2.0
// A program as a plan of the executor, which emitted source uses as well; and the memory of
// constants as packed for it, shared by the plans of one region.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <vector>

#include "byoc_plan.h"
#include "common/engine.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

/// Throws what a kernel or a plan of the executor answers.
void Check(int status, const char* error);

/// Uninitialised memory, aligned for vector loads; on huge pages when that is worth it.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes);
  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* data) const;
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_;
};

/// The constants that have been packed so far. The plans own them, and not this table.
class PackedStore {
 public:
  std::shared_ptr<AlignedBuffer> Find(const PackedKey& key) const;
  void Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer);

  /// The forms in which plans hold a tensor now.
  std::vector<PackedKey> FormsOf(int tensor) const;

 private:
  struct Entry {
    PackedKey key;
    std::weak_ptr<AlignedBuffer> buffer;
  };

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

class DnnlPlan final : public Plan {
 public:
  /// Creates the primitives and packs the constants.
  DnnlPlan(Program program, Shapes shapes, const std::vector<const void*>& constants,
           PackedStore* store);
  ~DnnlPlan() override;

  void Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const override;
  json::Object Describe(const Graph& graph) const override;  // report.cc, as the next one
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

/// Whether every node has a real implementation on this machine; plans without constant values.
json::Object ProbeGraph(const Graph& graph, const CostModel& cost);

}  // namespace tvm_byoc_dnnl
