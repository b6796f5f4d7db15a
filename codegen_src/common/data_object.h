// SPDX-License-Identifier: Apache-2.0
// Files that are written; and an ELF object file with nothing but data under one symbol, for a
// linker to put into a library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tvm_byoc_dnnl {

/// Each part of the data starts at a multiple of this.
constexpr uint64_t kPartAlignment = 64;

/// The start of each part when they are written one after the other; the last number is the size.
std::vector<uint64_t> PartOffsets(const std::vector<uint64_t>& sizes);

/// Writes the parts to `path`, read-only, in the section for large data: it may have any size, and
/// code may stay within 2 GB of everything else. Throws std::runtime_error if the file cannot be
/// written.
void WriteDataObject(const std::string& path, const std::string& symbol,
                     const std::vector<std::string_view>& parts);

/// A file that is written from its beginning to its end. Every member throws std::runtime_error
/// with path and reason where the system refuses; what was written until then is removed.
class OutputFile {
 public:
  /// Makes the file, or makes it empty; of a pipe without a reader it does not wait for one.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(std::string_view bytes);
  /// Zeros up to this position.
  void PadTo(uint64_t position);
  /// Must be called at the end: some systems report only now that there was no room.
  void Close();

 private:
  [[noreturn]] void FailWriting();

  const std::string path_;
  int descriptor_;
  uint64_t position_ = 0;
};

}  // namespace tvm_byoc_dnnl
