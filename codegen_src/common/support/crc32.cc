// SPDX-License-Identifier: Apache-2.0
#include "common/support/crc32.h"

#include <array>

namespace tvm_byoc_dnnl {
namespace {

constexpr uint32_t kReversedPolynomial = 0xEDB88320u;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1u) ? (value >> 1) ^ kReversedPolynomial : value >> 1;
    }
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char c : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFFu] ^ (crc >> 8);
  return ~crc;
}

}  // namespace tvm_byoc_dnnl
