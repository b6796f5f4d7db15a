// SPDX-License-Identifier: Apache-2.0
#include "common/mapped.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

/// The data that is mapped now: its start, its size, and the number of its users.
struct Ranges {
  struct Range {
    size_t bytes = 0;
    int users = 0;
  };
  std::mutex mutex;
  std::map<const char*, Range> by_start;
};

Ranges& MappedRanges() {
  static auto* ranges = new Ranges;  // outlives all
  return *ranges;
}

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> names;
  // dlopen must not be called from inside: the two take the linker's locks in another order.
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        static_cast<std::vector<std::string>*>(result)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

/// Null where the thread loads none.
thread_local const std::string* loading = nullptr;

std::vector<std::shared_ptr<const MappedData>> FindIn(const std::vector<std::string>& names,
                                                      const std::string& symbol) {
  std::vector<std::shared_ptr<const MappedData>> found;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    // The program itself has no name.
    void* handle = dlopen(name->empty() ? nullptr : name->c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    const std::shared_ptr<const void> library(handle, [handle](const void*) { dlclose(handle); });
    void* data = dlsym(handle, symbol.c_str());
    Dl_info info;
    const ElfW(Sym)* entry = nullptr;
    const bool exported =
        data != nullptr &&
        dladdr1(data, &info, const_cast<void**>(reinterpret_cast<const void**>(&entry)),
                RTLD_DL_SYMENT) != 0 &&
        entry != nullptr && info.dli_saddr == data;
    // A library that depends on the one with the data answers for it, too.
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const auto& other) { return other->data() == data; });
    if (exported && !known) {
      found.push_back(std::make_shared<const MappedData>(library, static_cast<const char*>(data),
                                                         entry->st_size));
    }
  }
  return found;
}

}  // namespace

LoadingLibrary::LoadingLibrary(const std::string& name) : outer_(std::exchange(loading, &name)) {}

LoadingLibrary::~LoadingLibrary() { loading = outer_; }

MappedData::MappedData(std::shared_ptr<const void> owner, const char* data, size_t bytes)
    : owner_(std::move(owner)), data_(data), bytes_(bytes) {
  Ranges& ranges = MappedRanges();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  Ranges::Range& range = ranges.by_start[data_];
  range.bytes = bytes_;
  ++range.users;
}

MappedData::~MappedData() {
  Ranges& ranges = MappedRanges();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  auto range = ranges.by_start.find(data_);
  if (--range->second.users == 0) ranges.by_start.erase(range);
}

std::shared_ptr<const MappedData> MapFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat about{};
  const bool is_file = file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode);
  const auto bytes = static_cast<size_t>(about.st_size);
  void* data =
      is_file && bytes > 0 ? mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  const std::string reason = file < 0 || data == MAP_FAILED ? std::strerror(errno)
                             : !is_file                     ? "it is no regular file"
                                                            : "it is empty";
  if (file >= 0) close(file);
  if (data == nullptr || data == MAP_FAILED)
    Fail(ErrorKind::kArtifact, "cannot load ", path, ": ", reason);
  const std::shared_ptr<const void> owner(data,
                                          [data, bytes](const void*) { munmap(data, bytes); });
  return std::make_shared<const MappedData>(owner, static_cast<const char*>(data), bytes);
}

std::vector<std::shared_ptr<const MappedData>> FindMapped(const std::string& symbol) {
  if (loading != nullptr) {
    // Not those of older files with the same data: they would stay mapped as long as this one.
    auto own = FindIn({*loading}, symbol);
    if (!own.empty()) return own;
  }
  return FindIn(LoadedLibraries(), symbol);
}

void DropPages(const void* data, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const char* start = static_cast<const char*>(data);
  Ranges& ranges = MappedRanges();
  // Held while the advice is given, so that no other thread unmaps the data.
  std::lock_guard<std::mutex> lock(ranges.mutex);
  auto after = ranges.by_start.upper_bound(start);
  if (after == ranges.by_start.begin()) return;
  const auto& [first, range] = *std::prev(after);
  if (start + bytes > first + range.bytes) return;
  uintptr_t from = (reinterpret_cast<uintptr_t>(start) + page - 1) / page * page;
  uintptr_t to = reinterpret_cast<uintptr_t>(start + bytes) / page * page;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace tvm_byoc_dnnl
