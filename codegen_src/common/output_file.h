// SPDX-License-Identifier: Apache-2.0
// A file that is written from its beginning to its end.
#ifndef TVM_BYOC_DNNL_COMMON_OUTPUT_FILE_H_
#define TVM_BYOC_DNNL_COMMON_OUTPUT_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tvm_byoc_dnnl {

/// Every member throws std::runtime_error with path and reason where the system refuses; what was
/// written until then is removed.
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

#endif  // TVM_BYOC_DNNL_COMMON_OUTPUT_FILE_H_
