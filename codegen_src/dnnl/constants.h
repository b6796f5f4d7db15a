// SPDX-License-Identifier: Apache-2.0
// Memory of constants: as packed for the primitives, shared by the plans of one region.
#ifndef TVM_BYOC_DNNL_DNNL_CONSTANTS_H_
#define TVM_BYOC_DNNL_DNNL_CONSTANTS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

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
  std::shared_ptr<AlignedBuffer> Find(const PackedKey& key);
  void Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer);

  /// The forms in which plans hold a tensor now.
  std::vector<PackedKey> FormsOf(int tensor) const;

 private:
  struct Entry {
    PackedKey key;
    std::weak_ptr<AlignedBuffer> buffer;
  };
  std::shared_ptr<AlignedBuffer> FindLocked(const PackedKey& key) const;

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_CONSTANTS_H_
