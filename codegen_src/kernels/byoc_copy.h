/* SPDX-License-Identifier: Apache-2.0
   Kernels without vectors. They move elements of any dtype: rows into a cache, slices by their
   index, rows with room behind them, one element over and over. Or they change numbers one by one:
   columns that turn in pairs, 16 bits to float32 and back, bytes by a table, and weights that are
   nothing beside the others. */
#ifndef BYOC_COPY_H_
#define BYOC_COPY_H_

#include "byoc_kernel.h"

/* A cache with new rows in it. Sizes in rows, `stride`s of the new rows in bytes. */
typedef struct __attribute__((may_alias)) byoc_append_params {
  int64_t batch, heads; /* the cache has `capacity` rows for each of both */
  int64_t rows, row_bytes;
  int64_t capacity;
  int64_t past_rows;  /* of the cache before, which are copied; -1: they are there already */
  int64_t places;     /* numbers that say where the new rows go: one, or one for each batch */
  int64_t places_end; /* such a number is where they end, else where they begin */
  int64_t batch_stride, head_stride, row_stride;
} byoc_append_params;

/* Where the new rows of a batch begin. */
BYOC_FUNCTION int64_t byoc_append_start(const byoc_append_params* p, void* const* data,
                                        int64_t batch) {
  int64_t place;
  memcpy(&place, (const char*)data[1] + (p->places == 1 ? 0 : batch) * 8, sizeof(place));
  return place - (p->places_end ? p->rows : 0);
}

/* The rows of one head; those that would lie outside of the cache are left out. */
BYOC_FUNCTION void byoc_append_head(const byoc_append_params* p, void* const* data, int64_t i) {
  const int64_t start = byoc_append_start(p, data, i / p->heads);
  const char* from =
      (const char*)data[0] + i / p->heads * p->batch_stride + i % p->heads * p->head_stride;
  char* to = (char*)data[p->past_rows < 0 ? 2 : 3] + i * p->capacity * p->row_bytes;
  const int64_t first = byoc_min(byoc_max(start, 0), p->capacity);
  const int64_t last = byoc_max(first, byoc_min(start + p->rows, p->capacity));
  if (p->past_rows >= 0) {
    const char* past = (const char*)data[2] + i * p->past_rows * p->row_bytes;
    const int64_t kept = byoc_min(first, p->past_rows);
    if (kept > 0) memcpy(to, past, (size_t)(kept * p->row_bytes));
    memset(to + kept * p->row_bytes, 0, (size_t)((first - kept) * p->row_bytes));
    const int64_t rest = byoc_max(last, byoc_min(p->past_rows, p->capacity));
    if (rest > last) {
      memcpy(to + last * p->row_bytes, past + last * p->row_bytes,
             (size_t)((rest - last) * p->row_bytes));
    }
    memset(to + rest * p->row_bytes, 0, (size_t)((p->capacity - rest) * p->row_bytes));
  }
  for (int64_t row = first; row < last; ++row) {
    memcpy(to + row * p->row_bytes, from + (row - start) * p->row_stride, (size_t)p->row_bytes);
  }
}

BYOC_FUNCTION void byoc_append_part(const byoc_append_params* p, void* const* data, int64_t part,
                                    int64_t parts) {
  const int64_t all = p->batch * p->heads;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    byoc_append_head(p, data, i);
  }
}

/* data: the new rows; where they go (int64); the cache before, if it is not there already; the
   cache. */
BYOC_KERNEL(append, byoc_append_params,
            p->batch * p->heads * (p->past_rows < 0 ? p->rows : p->capacity) * p->row_bytes <=
                    BYOC_COPY_ALONE
                ? 1
                : threads)

/* Heads whose columns turn in pairs: neighbours, or those of two halves. `src` and `dst`: what lies
   between batches, heads and rows, in elements. */
typedef struct __attribute__((may_alias)) byoc_rotary_params {
  int64_t batch, heads, rows, width;
  int64_t pairs; /* of a row, in its first columns; the rest is copied */
  int64_t neighbours;
  int64_t angles; /* between those of two batches; 0: all have the same */
  int64_t src[3], dst[3];
} byoc_rotary_params;

BYOC_FUNCTION void byoc_rotary_row(const byoc_rotary_params* p, const float* x, const float* cos,
                                   const float* sin, float* to) {
  const int64_t n = p->pairs;
  if (p->neighbours) {
    BYOC_OMP(simd)
    for (int64_t i = 0; i < n; ++i) {
      const float first = x[2 * i], second = x[2 * i + 1];
      to[2 * i] = first * cos[i] - second * sin[i];
      to[2 * i + 1] = second * cos[i] + first * sin[i];
    }
  } else {
    BYOC_OMP(simd)
    for (int64_t i = 0; i < n; ++i) {
      const float first = x[i], second = x[n + i];
      to[i] = first * cos[i] - second * sin[i];
      to[n + i] = second * cos[i] + first * sin[i];
    }
  }
  memcpy(to + 2 * n, x + 2 * n, (size_t)(p->width - 2 * n) * 4);
}

BYOC_FUNCTION void byoc_rotary_part(const byoc_rotary_params* p, void* const* data, int64_t part,
                                    int64_t parts) {
  const int64_t all = p->batch * p->rows;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    const int64_t batch = i / p->rows, row = i % p->rows;
    const int64_t at = batch * p->angles + row * p->pairs;
    const float* x = (const float*)data[0] + batch * p->src[0] + row * p->src[2];
    float* to = (float*)data[3] + batch * p->dst[0] + row * p->dst[2];
    for (int64_t h = 0; h < p->heads; ++h) {
      byoc_rotary_row(p, x + h * p->src[1], (const float*)data[1] + at, (const float*)data[2] + at,
                      to + h * p->dst[1]);
    }
  }
}

/* data: rows of heads; cosines and sines of each row, dense; the rows turned. */
BYOC_KERNEL(rotary, byoc_rotary_params,
            p->batch * p->heads * p->rows * p->width * 4 <= BYOC_COPY_ALONE ? 1 : threads)

/* Slices of a tensor along one axis, each found by its index: its meaning along an axis of n
 * slices. */
enum {
  BYOC_GATHER_CHECKED,  /* 0 to n - 1; any other one fails the call with BYOC_BAD_INDEX */
  BYOC_GATHER_FROM_END, /* a negative one counts from the end; then clamped */
  BYOC_GATHER_CLIP,     /* clamped */
  BYOC_GATHER_WRAP      /* modulo n */
};

BYOC_FUNCTION int64_t byoc_gather_index(const void* indices, int64_t bytes, int64_t at) {
  return bytes == 8 ? ((const int64_t*)indices)[at] : ((const int32_t*)indices)[at];
}

/* The slice that an index means, always one of the n that there are; -1 for one that is refused. */
BYOC_FUNCTION int64_t byoc_gather_slice(int64_t index, int64_t n, int64_t mode) {
  if (mode == BYOC_GATHER_WRAP) {
    index %= n;
    return index < 0 ? index + n : index;
  }
  if (mode == BYOC_GATHER_CHECKED) return index < 0 || index >= n ? -1 : index;
  if (mode == BYOC_GATHER_FROM_END && index < 0) index += n;
  return index < 0 ? 0 : index >= n ? n - 1 : index;
}

/* Copies with a size that the compiler knows are one instruction. */
BYOC_FUNCTION void byoc_gather_copy(char* to, const char* from, int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      memcpy(to, from, 2);
      return;
    case 4:
      memcpy(to, from, 4);
      return;
    default:
      memcpy(to, from, (size_t)bytes);
  }
}

/* Returns whether an index was refused. */
BYOC_FUNCTION int byoc_gather_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const int64_t mode = params[0], n = params[2], slice = params[3];
  const int64_t count = params[4], width = params[5], all = params[1] * count;
  const char* from = (const char*)data[0];
  char* to = (char*)data[2];
  int refused = 0;
  (void)scratch;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    const int64_t at = byoc_gather_slice(byoc_gather_index(data[1], width, i % count), n, mode);
    if (at < 0) {
      refused = 1;
      continue;
    }
    byoc_gather_copy(to + i * slice, from + (i / count * n + at) * slice, slice);
  }
  return refused;
}

/* params: the mode; how many times the axis is run through, n, the bytes of a slice; the number of
   indices, the bytes of one. data: source, indices, result; all dense. */
BYOC_FUNCTION int byoc_gather(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const int64_t mode = params[0], n = params[2], count = params[4], width = params[5];
  const int alone = params[1] * count * params[3] <= BYOC_COPY_ALONE;
  int64_t i;
  if (!byoc_on_team(byoc_gather_on_thread, params, data, scratch, alone ? 1 : threads))
    return BYOC_OK;
  for (i = 0; i + 1 < count; ++i) {
    if (byoc_gather_slice(byoc_gather_index(data[1], width, i), n, mode) < 0) break;
  }
  snprintf(error, BYOC_ERROR_BYTES,
           "gather: index %lld is out of range, the axis has %lld elements",
           (long long)byoc_gather_index(data[1], width, i), (long long)n);
  return BYOC_BAD_INDEX;
}

/* Rows with room for more elements behind those that they have. params: the number of rows, the
   elements of a row of the result, the bytes of one. data: the source, dense; the elements of its
   rows (one int64); the result, filled up with zeros. */
BYOC_FUNCTION int byoc_widen(const int64_t* params, void* const* data, void* scratch, int threads,
                             char* error) {
  const int64_t wide = params[1] * params[2];
  int64_t length, i;
  (void)scratch;
  (void)threads;
  memcpy(&length, data[1], sizeof(length));
  if (length < 0 || length > params[1]) {
    snprintf(error, BYOC_ERROR_BYTES, "rows of %lld elements, expected 0 to %lld",
             (long long)length, (long long)params[1]);
    return BYOC_BAD_INDEX;
  }
  length *= params[2];
  for (i = 0; i < params[0]; ++i) {
    char* to = (char*)data[2] + i * wide;
    memcpy(to, (const char*)data[0] + i * length, (size_t)length);
    memset(to + length, 0, (size_t)(wide - length));
  }
  return BYOC_OK;
}

/* Fills a part of a buffer with one element. params: the bytes to fill, the bytes of the element
   (1, 2, 4 or 8), and these as the first bytes of a number in memory. data: the part. */
BYOC_FUNCTION int byoc_fill(const int64_t* params, void* const* data, void* scratch, int threads,
                            char* error) {
  const size_t bytes = (size_t)params[0];
  const char* element = (const char*)&params[2];
  char* to = (char*)data[0];
  size_t done = (size_t)params[1];
  (void)scratch;
  (void)threads;
  (void)error;
  if (done == 1) {
    memset(to, element[0], bytes);
    return BYOC_OK;
  }
  if (done > bytes) done = bytes;
  memcpy(to, element, done);
  while (done < bytes) { /* copies the filled part behind itself */
    const size_t chunk = done < bytes - done ? done : bytes - done;
    memcpy(to + done, to, chunk);
    done += chunk;
  }
  return BYOC_OK;
}

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

BYOC_FUNCTION void byoc_convert_part(const int64_t* params, void* const* data, int64_t part,
                                     int64_t parts) {
  const int64_t first = params[0] * part / parts, last = params[0] * (part + 1) / parts;
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
}

/* params: the number of elements, and one of the conversions above. data: the elements, and the
   results. */
BYOC_KERNEL(convert, int64_t, p[0] > BYOC_CONVERT_ALONE ? threads : 1)

enum { BYOC_LOOKUP_WORDS = 32, BYOC_LOOKUP_CHUNK = 8, BYOC_LOOKUP_ALONE = 1 << 14 };

BYOC_FUNCTION void byoc_lookup_part(const int64_t* params, void* const* data, int64_t part,
                                    int64_t parts) {
  const int64_t chunks = params[0] / BYOC_LOOKUP_CHUNK;
  const uint8_t* table = (const uint8_t*)(params + 1);
  const uint8_t* from = (const uint8_t*)data[0];
  uint8_t* to = (uint8_t*)data[1];
  /* The results of a chunk are stored at once. */
  for (int64_t i = chunks * part / parts; i < chunks * (part + 1) / parts; ++i) {
    uint64_t some, found = 0;
    memcpy(&some, from + i * BYOC_LOOKUP_CHUNK, BYOC_LOOKUP_CHUNK);
    for (int shift = 0; shift < 8 * BYOC_LOOKUP_CHUNK; shift += 8) {
      found |= (uint64_t)table[(some >> shift) & 255] << shift;
    }
    memcpy(to + i * BYOC_LOOKUP_CHUNK, &found, BYOC_LOOKUP_CHUNK);
  }
  if (part + 1 < parts) return;
  for (int64_t i = chunks * BYOC_LOOKUP_CHUNK; i < params[0]; ++i) to[i] = table[from[i]];
}

/* params: the number of bytes, and 256 results, eight of them in each number. data: the bytes, and
   the results. */
BYOC_KERNEL(lookup, int64_t, p[0] > BYOC_LOOKUP_ALONE ? threads : 1)

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

#endif /* BYOC_COPY_H_ */
