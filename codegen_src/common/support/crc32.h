// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_COMMON_SUPPORT_CRC32_H_
#define TVM_BYOC_DNNL_COMMON_SUPPORT_CRC32_H_

#include <cstdint>
#include <string_view>

namespace tvm_byoc_dnnl {

/// CRC-32 (IEEE 802.3) of `bytes`, the one that zlib computes.
uint32_t Crc32(std::string_view bytes);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_SUPPORT_CRC32_H_
