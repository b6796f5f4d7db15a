// SPDX-License-Identifier: Apache-2.0
#include "dnnl/constants.h"

#include <algorithm>
#include <new>

#include "byoc_plan.h"

namespace tvm_byoc_dnnl {

AlignedBuffer::AlignedBuffer(size_t bytes) : data_(byoc_allocate(bytes)), bytes_(bytes) {
  if (data_ == nullptr) throw std::bad_alloc();
}

void AlignedBuffer::Free::operator()(char* data) const { byoc_free(data); }

std::shared_ptr<AlignedBuffer> PackedStore::FindLocked(const PackedKey& key) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key) {
      if (auto buffer = entry.buffer.lock()) return buffer;
    }
  }
  return nullptr;
}

std::shared_ptr<AlignedBuffer> PackedStore::Find(const PackedKey& key) {
  if (key.tensor < 0) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(key);
}

void PackedStore::Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer) {
  if (key.tensor < 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (FindLocked(key) == buffer) return;  // another plan's
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& entry) { return entry.buffer.expired(); }),
                 entries_.end());
  entries_.push_back({key, buffer});
}

std::vector<PackedKey> PackedStore::FormsOf(int tensor) const {
  std::vector<PackedKey> forms;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.key.tensor == tensor && !entry.buffer.expired()) forms.push_back(entry.key);
  }
  return forms;
}

}  // namespace tvm_byoc_dnnl
