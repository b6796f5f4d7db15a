// SPDX-License-Identifier: Apache-2.0
#include "dnnl/constants.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>

#include "byoc_plan.h"

namespace tvm_byoc_dnnl {

namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // of Linux 6.1; older headers do not name it
#endif

/// Whether the kernel can move filled memory to huge pages, and the user has not forbidden these.
bool CanMove() {
  static const bool can = [] {
    std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string words;
    if (!std::getline(setting, words) || words.find("[never]") != std::string::npos) return false;
    alignas(BYOC_PAGE) static char page[BYOC_PAGE];
    return madvise(page, 0, kCollapse) == 0;
  }();
  return can;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes)
    : data_(CanMove() ? byoc_reserve(bytes) : byoc_allocate(bytes)),
      bytes_(bytes),
      huge_(CanMove() ? byoc_huge_bytes(bytes) : 0) {
  if (data_ == nullptr) throw std::bad_alloc();
}

size_t AlignedBuffer::ToHugePages(size_t bytes) {
  size_t from = moved_.load(std::memory_order_relaxed);
  const size_t whole = (bytes + BYOC_HUGE_PAGE - 1) / BYOC_HUGE_PAGE * BYOC_HUGE_PAGE;
  const size_t count = std::min(whole, huge_ - from);
  if (count == 0 || !moved_.compare_exchange_strong(from, from + count)) return 0;
  madvise(data() + from, count, kCollapse);  // advice only: where there is none free, they stay
  return count;
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
