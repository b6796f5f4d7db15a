/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64 with seed 0, for little-endian machines: whether weights and saved modules are what was
   exported. C99, and C++ as well: the library uses it, and emitted source contains it. */
#ifndef BYOC_CHECKSUM_H_
#define BYOC_CHECKSUM_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "written for little-endian machines"
#endif

#define BYOC_PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define BYOC_PRIME_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define BYOC_PRIME_3 UINT64_C(0x165667B19E3779F9)
#define BYOC_PRIME_4 UINT64_C(0x85EBCA77C2B2AE63)
#define BYOC_PRIME_5 UINT64_C(0x27D4EB2F165667C5)

static inline uint64_t byoc_checksum_rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

static inline uint64_t byoc_checksum_round(uint64_t accumulator, uint64_t input) {
  return byoc_checksum_rotate(accumulator + input * BYOC_PRIME_2, 31) * BYOC_PRIME_1;
}

static inline uint64_t byoc_checksum_read(const unsigned char* data, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, data, bytes);
  return value;
}

static inline uint64_t byoc_checksum(const void* memory, size_t bytes) {
  const unsigned char* data = (const unsigned char*)memory;
  size_t left = bytes;
  uint64_t hash = BYOC_PRIME_5;
  int i;
  if (left >= 32) {
    uint64_t lanes[4] = {BYOC_PRIME_1 + BYOC_PRIME_2, BYOC_PRIME_2, 0, 0 - BYOC_PRIME_1};
    for (; left >= 32; left -= 32, data += 32) {
      for (i = 0; i < 4; ++i) {
        lanes[i] = byoc_checksum_round(lanes[i], byoc_checksum_read(data + 8 * i, 8));
      }
    }
    hash = byoc_checksum_rotate(lanes[0], 1) + byoc_checksum_rotate(lanes[1], 7) +
           byoc_checksum_rotate(lanes[2], 12) + byoc_checksum_rotate(lanes[3], 18);
    for (i = 0; i < 4; ++i) {
      hash = (hash ^ byoc_checksum_round(0, lanes[i])) * BYOC_PRIME_1 + BYOC_PRIME_4;
    }
  }
  hash += bytes;
  for (; left >= 8; left -= 8, data += 8) {
    hash = byoc_checksum_rotate(hash ^ byoc_checksum_round(0, byoc_checksum_read(data, 8)), 27) *
               BYOC_PRIME_1 +
           BYOC_PRIME_4;
  }
  for (; left >= 4; left -= 4, data += 4) {
    hash =
        byoc_checksum_rotate(hash ^ byoc_checksum_read(data, 4) * BYOC_PRIME_1, 23) * BYOC_PRIME_2 +
        BYOC_PRIME_3;
  }
  for (; left > 0; --left, ++data) {
    hash = byoc_checksum_rotate(hash ^ *data * BYOC_PRIME_5, 11) * BYOC_PRIME_1;
  }
  hash = (hash ^ hash >> 33) * BYOC_PRIME_2;
  hash = (hash ^ hash >> 29) * BYOC_PRIME_3;
  return hash ^ hash >> 32;
}

#endif /* BYOC_CHECKSUM_H_ */
