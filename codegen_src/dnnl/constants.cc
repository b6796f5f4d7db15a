// SPDX-License-Identifier: Apache-2.0
#include "dnnl/constants.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const size_t huge_bytes = bytes >= 2 * kHugePage ? bytes / kHugePage * kHugePage : 0;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, huge_bytes != 0 ? kHugePage : kAlignment, rounded) != 0) {
    throw std::bad_alloc();
  }
  data_.reset(static_cast<char*>(data));
  if (huge_bytes == 0) return;
  // Advice only: failure is harmless. The rest would fill a huge page of its own with next to
  // nothing.
  madvise(data, huge_bytes, MADV_HUGEPAGE);
  const size_t rest = (bytes - huge_bytes) / kPage * kPage;
  if (rest != 0) madvise(data_.get() + huge_bytes, rest, MADV_NOHUGEPAGE);
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

void PackedStore::Insert(const PackedKey& key, const std::shared_ptr<AlignedBuffer>& buffer) {
  if (key.tensor < 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& entry) { return entry.buffer.expired(); }),
                 entries_.end());
  entries_.push_back({key, buffer});
}

}  // namespace tvm_byoc_dnnl
