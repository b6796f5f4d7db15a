// SPDX-License-Identifier: Apache-2.0
#include "common/support/xxhash.h"

#include <cstring>

namespace tvm_byoc_dnnl {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <typename Integer>
uint64_t ReadLittleEndian(const char* data) {
  Integer value;
  std::memcpy(&value, data, sizeof(value));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "written for little-endian machines"
#endif
  return value;
}

uint64_t RotateLeft(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

uint64_t Round(uint64_t accumulator, uint64_t input) {
  return RotateLeft(accumulator + input * kPrime2, 31) * kPrime1;
}

}  // namespace

uint64_t Xxh64(std::string_view bytes) {
  const char* data = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = kPrime5;
  if (left >= 32) {
    uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    for (; left >= 32; left -= 32, data += 32) {
      for (int i = 0; i < 4; ++i)
        lanes[i] = Round(lanes[i], ReadLittleEndian<uint64_t>(data + 8 * i));
    }
    hash = RotateLeft(lanes[0], 1) + RotateLeft(lanes[1], 7) + RotateLeft(lanes[2], 12) +
           RotateLeft(lanes[3], 18);
    for (uint64_t lane : lanes) hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    hash = RotateLeft(hash ^ Round(0, ReadLittleEndian<uint64_t>(data)), 27) * kPrime1 + kPrime4;
  }
  for (; left >= 4; left -= 4, data += 4) {
    hash = RotateLeft(hash ^ ReadLittleEndian<uint32_t>(data) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  for (; left > 0; --left, ++data) {
    hash = RotateLeft(hash ^ static_cast<uint8_t>(*data) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace tvm_byoc_dnnl
