/* SPDX-License-Identifier: Apache-2.0 */
/* xxHash64 with seed 0, for little-endian machines: whether weights are those that were exported.
 */
#ifndef DNNL_BYOC_CHECKSUM_H_
#define DNNL_BYOC_CHECKSUM_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "written for little-endian machines"
#endif

#if defined(__GNUC__)
#define DNNL_BYOC_CHECKSUM __attribute__((unused)) static
#else
#define DNNL_BYOC_CHECKSUM static
#endif

#define DNNL_BYOC_PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define DNNL_BYOC_PRIME_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define DNNL_BYOC_PRIME_3 UINT64_C(0x165667B19E3779F9)
#define DNNL_BYOC_PRIME_4 UINT64_C(0x85EBCA77C2B2AE63)
#define DNNL_BYOC_PRIME_5 UINT64_C(0x27D4EB2F165667C5)

DNNL_BYOC_CHECKSUM uint64_t dnnl_byoc_rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

DNNL_BYOC_CHECKSUM uint64_t dnnl_byoc_round(uint64_t accumulator, uint64_t input) {
  return dnnl_byoc_rotate(accumulator + input * DNNL_BYOC_PRIME_2, 31) * DNNL_BYOC_PRIME_1;
}

DNNL_BYOC_CHECKSUM uint64_t dnnl_byoc_read(const unsigned char* data, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, data, bytes);
  return value;
}

DNNL_BYOC_CHECKSUM uint64_t dnnl_byoc_checksum(const void* memory, size_t bytes) {
  const unsigned char* data = (const unsigned char*)memory;
  size_t left = bytes;
  uint64_t hash = DNNL_BYOC_PRIME_5;
  int i;
  if (left >= 32) {
    uint64_t lanes[4] = {DNNL_BYOC_PRIME_1 + DNNL_BYOC_PRIME_2, DNNL_BYOC_PRIME_2, 0,
                         0 - DNNL_BYOC_PRIME_1};
    for (; left >= 32; left -= 32, data += 32) {
      for (i = 0; i < 4; ++i) {
        lanes[i] = dnnl_byoc_round(lanes[i], dnnl_byoc_read(data + 8 * i, 8));
      }
    }
    hash = dnnl_byoc_rotate(lanes[0], 1) + dnnl_byoc_rotate(lanes[1], 7) +
           dnnl_byoc_rotate(lanes[2], 12) + dnnl_byoc_rotate(lanes[3], 18);
    for (i = 0; i < 4; ++i) {
      hash = (hash ^ dnnl_byoc_round(0, lanes[i])) * DNNL_BYOC_PRIME_1 + DNNL_BYOC_PRIME_4;
    }
  }
  hash += bytes;
  for (; left >= 8; left -= 8, data += 8) {
    hash = dnnl_byoc_rotate(hash ^ dnnl_byoc_round(0, dnnl_byoc_read(data, 8)), 27) *
               DNNL_BYOC_PRIME_1 +
           DNNL_BYOC_PRIME_4;
  }
  for (; left >= 4; left -= 4, data += 4) {
    hash = dnnl_byoc_rotate(hash ^ dnnl_byoc_read(data, 4) * DNNL_BYOC_PRIME_1, 23) *
               DNNL_BYOC_PRIME_2 +
           DNNL_BYOC_PRIME_3;
  }
  for (; left > 0; --left, ++data) {
    hash = dnnl_byoc_rotate(hash ^ *data * DNNL_BYOC_PRIME_5, 11) * DNNL_BYOC_PRIME_1;
  }
  hash = (hash ^ hash >> 33) * DNNL_BYOC_PRIME_2;
  hash = (hash ^ hash >> 29) * DNNL_BYOC_PRIME_3;
  return hash ^ hash >> 32;
}

#endif /* DNNL_BYOC_CHECKSUM_H_ */
