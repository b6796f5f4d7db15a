/* SPDX-License-Identifier: Apache-2.0
   Kernels that change numbers one by one, without vectors: 16 bits to float32 and back, bytes by a
   table, and weights that are nothing beside the others. */
#ifndef BYOC_CONVERT_H_
#define BYOC_CONVERT_H_

#include "byoc_kernel.h"

/* Numbers of 16 bits, for CPUs whose oneDNN has not even this conversion. */
enum { BYOC_FROM_BFLOAT16, BYOC_TO_BFLOAT16, BYOC_FROM_FLOAT16, BYOC_TO_FLOAT16 };
enum { BYOC_CONVERT_ALONE = 1 << 14 };

static inline float byoc_as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t byoc_as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float byoc_from_bfloat16(uint16_t half) {
  return byoc_as_float((uint32_t)half << 16);
}

/* To the nearest, ties to even. */
static inline uint16_t byoc_to_bfloat16(float value) {
  const uint32_t bits = byoc_as_bits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

static inline float byoc_from_float16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, number = half & 0x7fff;
  const uint32_t normal = (number << 13) + (112u << 23);
  /* below 2^-14 there is no leading one: it is added, and taken away again */
  const float tiny = byoc_as_float(normal + (1u << 23)) - byoc_as_float(113u << 23);
  const uint32_t bits = number >= 0x7c00 ? (number << 13) | 0x7f800000
                        : number < 0x400 ? byoc_as_bits(tiny)
                                         : normal;
  return byoc_as_float(sign | bits);
}

/* To the nearest, ties to even. */
static inline uint16_t byoc_to_float16(float value) {
  const uint32_t bits = byoc_as_bits(value), number = bits & 0x7fffffff;
  const uint32_t normal = (number - (112u << 23) + 0xfff + ((number >> 13) & 1)) >> 13;
  /* the last bit of 0.5 is worth 2^-24, the smallest number: the sum rounds to multiples of it */
  const uint32_t tiny = byoc_as_bits(byoc_as_float(number) + 0.5f) - byoc_as_bits(0.5f);
  const uint32_t half = number > 0x7f800000    ? 0x7e00 /* no number */
                        : number >= 0x47800000 ? 0x7c00 /* infinite, or 65536 and more */
                        : number < 0x38800000  ? tiny
                                               : normal;
  return (uint16_t)((bits >> 16 & 0x8000) | half);
}

BYOC_FUNCTION int byoc_convert_on_thread(const int64_t* params, void* const* data, void* scratch,
                                         int64_t part, int64_t parts) {
  const int64_t first = params[0] * part / parts, last = params[0] * (part + 1) / parts;
  (void)scratch;
#define BYOC_CONVERT(From, To, one)                              \
  do {                                                           \
    const From* from = (const From*)data[0];                     \
    To* to = (To*)data[1];                                       \
    for (int64_t i = first; i < last; ++i) to[i] = one(from[i]); \
  } while (0)
  switch (params[1]) {
    case BYOC_FROM_BFLOAT16:
      BYOC_CONVERT(uint16_t, float, byoc_from_bfloat16);
      break;
    case BYOC_TO_BFLOAT16:
      BYOC_CONVERT(float, uint16_t, byoc_to_bfloat16);
      break;
    case BYOC_FROM_FLOAT16:
      BYOC_CONVERT(uint16_t, float, byoc_from_float16);
      break;
    default:
      BYOC_CONVERT(float, uint16_t, byoc_to_float16);
  }
#undef BYOC_CONVERT
  return BYOC_OK;
}

/* params: the number of elements, and one of the conversions above. data: the elements, and the
   results. */
BYOC_FUNCTION int byoc_convert(const int64_t* params, void* const* data, void* scratch, int threads,
                               char* error) {
  (void)error;
  return byoc_on_team(byoc_convert_on_thread, params, data, scratch,
                      params[0] > BYOC_CONVERT_ALONE ? threads : 1);
}

enum { BYOC_LOOKUP_WORDS = 32, BYOC_LOOKUP_CHUNK = 8, BYOC_LOOKUP_ALONE = 1 << 14 };

BYOC_FUNCTION int byoc_lookup_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const int64_t chunks = params[0] / BYOC_LOOKUP_CHUNK;
  const uint8_t* table = (const uint8_t*)(params + 1);
  const uint8_t* from = (const uint8_t*)data[0];
  uint8_t* to = (uint8_t*)data[1];
  (void)scratch;
  /* The results of a chunk are stored at once. */
  for (int64_t i = chunks * part / parts; i < chunks * (part + 1) / parts; ++i) {
    uint64_t some, found = 0;
    memcpy(&some, from + i * BYOC_LOOKUP_CHUNK, BYOC_LOOKUP_CHUNK);
    for (int shift = 0; shift < 8 * BYOC_LOOKUP_CHUNK; shift += 8) {
      found |= (uint64_t)table[(some >> shift) & 255] << shift;
    }
    memcpy(to + i * BYOC_LOOKUP_CHUNK, &found, BYOC_LOOKUP_CHUNK);
  }
  if (part + 1 < parts) return BYOC_OK;
  for (int64_t i = chunks * BYOC_LOOKUP_CHUNK; i < params[0]; ++i) to[i] = table[from[i]];
  return BYOC_OK;
}

/* params: the number of bytes, and 256 results, eight of them in each number. data: the bytes, and
   the results. */
BYOC_FUNCTION int byoc_lookup(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  (void)error;
  return byoc_on_team(byoc_lookup_on_thread, params, data, scratch,
                      params[0] > BYOC_LOOKUP_ALONE ? threads : 1);
}

enum {
  BYOC_FLUSH_TINY = (127 - 100) << 23,  /* the bits of 2^-100 */
  BYOC_FLUSH_BESIDE = (127 - 40) << 23, /* those of 2^-40 */
  BYOC_FLUSH_ALONE = 1 << 14            /* numbers that are not worth waking another thread */
};

enum { BYOC_FLUSH_HAS_TINY = 1, BYOC_FLUSH_HAS_LARGE = 2 };

/* What there is among the numbers of a part. */
BYOC_FUNCTION int byoc_flush_on_thread(const int64_t* params, void* const* data, void* scratch,
                                       int64_t part, int64_t parts) {
  const int32_t* bits = (const int32_t*)data[0]; /* without its sign, in the order of the numbers */
  const int64_t last = params[0] * (part + 1) / parts;
  int32_t tiny = 0, large = 0; /* negative if there is such a number */
  (void)scratch;
  BYOC_OMP(simd reduction(| : tiny, large))
  for (int64_t i = params[0] * part / parts; i < last; ++i) {
    const int32_t size = bits[i] & 0x7fffffff;
    tiny |= (size - BYOC_FLUSH_TINY) & -size;
    large |= BYOC_FLUSH_BESIDE - 1 - size;
  }
  return (tiny < 0 ? BYOC_FLUSH_HAS_TINY : 0) | (large < 0 ? BYOC_FLUSH_HAS_LARGE : 0);
}

/* Numbers below 2^-100 become 0 where one of all is at least 2^-40: 2^60 times as large. params:
   how many numbers. data: the numbers, float32. */
BYOC_FUNCTION int byoc_flush(const int64_t* params, void* const* data, void* scratch, int threads,
                             char* error) {
  const int64_t count = params[0];
  int32_t* bits = (int32_t*)data[0];
  (void)error;
  if (byoc_on_team(byoc_flush_on_thread, params, data, scratch,
                   count > BYOC_FLUSH_ALONE ? threads : 1) !=
      (BYOC_FLUSH_HAS_TINY | BYOC_FLUSH_HAS_LARGE))
    return BYOC_OK;
  for (int64_t i = 0; i < count; ++i) {
    if ((bits[i] & 0x7fffffff) < BYOC_FLUSH_TINY) bits[i] = 0;
  }
  return BYOC_OK;
}

#endif /* BYOC_CONVERT_H_ */
