// SPDX-License-Identifier: Apache-2.0
// A model that is calls of regions and arithmetic on few numbers, loaded from the file that
// export_library wrote and run without TVM.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/artifact.h"
#include "common/mapped.h"
#include "common/memory_plan.h"
#include "native/program.h"
#include "native/saved_region.h"

namespace tvm_byoc_dnnl {

/// What such a file holds; nothing of it is executed.
struct ModelFile {
  std::string program;
  std::vector<Artifact> regions;
  WeightsTable table;
  std::shared_ptr<const MappedData> mapped;
  size_t weights = 0;  // where their data begins
};

/// Reads a file and compares it with its checksum. Throws Error(kArtifact) if it is none, or is
/// damaged, and Error(kUnsupported) if it needs TVM.
ModelFile ReadModelFile(const std::string& path);

/// Any number of threads may run it.
class Model {
 public:
  /// Plans what is static, and packs weights; `threads` for each call, 0 for as many as usual.
  Model(const ModelFile& file, int threads);

  const Program& program() const { return program_; }
  const std::vector<std::unique_ptr<SavedRegion>>& regions() const { return regions_; }

  /// What the symbols' values decide.
  struct Sizes {
    std::vector<int64_t> symbols;
    Shapes shapes;                              // of each value
    std::vector<Buffer> buffers;                // of each value
    std::vector<std::vector<int64_t>> regions;  // the values of each call's symbols
    int64_t arena = 0;
  };

  /// For inputs of these shapes. Throws Error(kInput) if they do not fit.
  std::shared_ptr<const Sizes> SizesFor(const std::vector<Dims>& inputs);

  /// Makes the plans for inputs of these shapes.
  void Prepare(const std::vector<Dims>& inputs);

  /// `outputs` have room for the shapes that these sizes have.
  void Run(const Sizes& sizes, const std::vector<void*>& inputs, const std::vector<void*>& outputs);

 private:
  /// Memory for values between calls.
  struct Arena {
    std::shared_ptr<char> data;
    int64_t bytes = 0;
  };

  void LinkCalls();
  bool IsView(size_t call) const {
    return called_[call] == nullptr && program_.calls[call].op == nullptr;
  }
  void InitialiseRegions(const ModelFile& file);
  Sizes MakeSizes(std::vector<int64_t> symbols) const;
  std::vector<int64_t> BindCall(size_t call, const Sizes& sizes) const;
  void PlaceValues(Sizes* sizes) const;
  void RunCall(size_t call, const Sizes& sizes, const std::vector<void*>& values);
  std::shared_ptr<const Plan> PlanOf(size_t call, const Sizes& sizes, bool whole) const;
  Arena TakeArena(int64_t bytes);
  void GiveBack(Arena arena);

  const Program program_;
  const int threads_;
  std::vector<std::unique_ptr<SavedRegion>> regions_;
  std::vector<SavedRegion*> called_;  // by each call; null where no region is
  std::vector<int> homes_;            // of each value: whose memory it is in

  std::mutex mutex_;                               // guards the members below
  std::list<std::shared_ptr<const Sizes>> sizes_;  // those used last first
  Arena spare_;                                    // that no call uses
};

}  // namespace tvm_byoc_dnnl
