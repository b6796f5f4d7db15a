// SPDX-License-Identifier: Apache-2.0
// An ELF object file with nothing but data under one symbol, for a linker to put into a library.
#ifndef TVM_BYOC_DNNL_COMMON_DATA_OBJECT_H_
#define TVM_BYOC_DNNL_COMMON_DATA_OBJECT_H_

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

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_DATA_OBJECT_H_
