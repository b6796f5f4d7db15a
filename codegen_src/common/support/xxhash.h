// SPDX-License-Identifier: Apache-2.0
// XXH64 with seed 0: a checksum that is computed as fast as memory is read.
#ifndef TVM_BYOC_DNNL_COMMON_SUPPORT_XXHASH_H_
#define TVM_BYOC_DNNL_COMMON_SUPPORT_XXHASH_H_

#include <cstdint>
#include <string_view>

#include "byoc_checksum.h"

namespace tvm_byoc_dnnl {

inline uint64_t Xxh64(std::string_view bytes) { return byoc_checksum(bytes.data(), bytes.size()); }

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_SUPPORT_XXHASH_H_
