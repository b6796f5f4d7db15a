// SPDX-License-Identifier: Apache-2.0
// Mapped data: of a shared library of this process, found by its symbol, or of a file; and how to
// give its pages back.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace tvm_byoc_dnnl {

/// Read-only data inside of what its owner keeps mapped.
class MappedData {
 public:
  MappedData(std::shared_ptr<const void> owner, const char* data, size_t bytes);
  ~MappedData();
  MappedData(const MappedData&) = delete;
  MappedData& operator=(const MappedData&) = delete;

  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<const void> owner_;
  const char* data_;
  size_t bytes_;
};

/// While this exists, the calling thread loads the library of this name.
class LoadingLibrary {
 public:
  explicit LoadingLibrary(const std::string& name);
  ~LoadingLibrary();
  LoadingLibrary(const LoadingLibrary&) = delete;
  LoadingLibrary& operator=(const LoadingLibrary&) = delete;

 private:
  const std::string* outer_;
};

/// The data that libraries of this process export under `symbol`, the newest first; of the one that
/// this thread is loading alone, if it has some.
std::vector<std::shared_ptr<const MappedData>> FindMapped(const std::string& symbol);

/// A whole regular file. Throws Error(kArtifact) if it cannot be read or is empty.
std::shared_ptr<const MappedData> MapFile(const std::string& path);

/// Lets the system take back the whole pages of a part of mapped data; reading it again brings them
/// back. Does nothing for any other memory.
void DropPages(const void* data, size_t bytes);

}  // namespace tvm_byoc_dnnl
