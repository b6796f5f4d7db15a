// SPDX-License-Identifier: Apache-2.0
#include "dnnl/constants.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  bool huge = bytes >= 2 * kHugePage;
  size_t alignment = huge ? kHugePage : static_cast<size_t>(kAlignment);
  size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  data_.reset(static_cast<char*>(std::aligned_alloc(alignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (huge) madvise(data_.get(), rounded, MADV_HUGEPAGE);  // advice only: failure is harmless
}

void AlignedBuffer::Free::operator()(char* data) const { std::free(data); }

std::shared_ptr<AlignedBuffer> PackedStore::Find(const PackedKey& key) {
  if (key.tensor < 0) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.key.tensor == key.tensor && entry.key.md == key.md) {
      if (auto buffer = entry.buffer.lock()) return buffer;
    }
  }
  return nullptr;
}

void PackedStore::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
}

void PackedStore::Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer) {
  if (key.tensor < 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& entry) { return entry.buffer.expired(); }),
                 entries_.end());
  entries_.push_back({key, buffer});
}

}  // namespace tvm_byoc_dnnl
