/* SPDX-License-Identifier: Apache-2.0
   A matrix product of float32 with constant weights of 8 or 4 bits that share a scale, and perhaps
   a zero point, in groups along the depth:

     dst[m][n] = sum over k of src[m][k] * (weights[n][k] - zero_points[n][g]) * scales[n][g]
                                                                            g = k / group

   For a few rows the weights become floats in registers, once for every four rows (with AVX2 two).
   For more rows each block of them is decompressed into the cache, and multiplied from there.

   The source may be rounded to 8 bits: each group of a row has a scale, its largest magnitude
   divided by 127, and becomes the whole numbers nearest to what it is in that unit (ties to even).
   The products of a group are summed as integers then, exactly, and

     dst[m][n] = sum over g of scale[m][g] * (scales[n][g] * (sum of integers - zero * sum of
   source))

   from the first group on, each step one multiplication and addition that is rounded once. So the
   bits do not depend on the instruction set, on the threads, or on the other rows; without AVX2 the
   last ones may differ. A group that is not finite makes all results of its row NaN.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_COMPRESSED_MATMUL_H_
#define BYOC_COMPRESSED_MATMUL_H_

#include "byoc_compressed_plan.h"

#define BYOC_BODY "byoc_compressed_integer_body.h"
#include "byoc_each_isa.h"
#if BYOC_HAS_VNNI
#define BYOC_SIMD_VNNI
#define BYOC_BODY "byoc_compressed_integer_body.h"
#include "byoc_each_isa.h"
#undef BYOC_SIMD_VNNI
#endif
#define BYOC_BODY "byoc_compressed_matmul.h"
#include "byoc_each_isa.h"

/* For a CPU without AVX2: a weight without its scale. */
BYOC_FUNCTION float byoc_compressed_weight(const byoc_compressed_params* p, const char* group,
                                           int64_t k, int64_t c) {
  const int64_t panel = byoc_compressed_panel(p), in_word = 32 / p->bits;
  uint32_t word;
  memcpy(&word, group + byoc_compressed_head(p) + (k / in_word * panel + c) * 4, 4);
  word = word >> k % in_word * p->bits & (p->bits == 8 ? 255 : 15);
  return (float)word - (p->bits == 8 ? 128 : 8) -
         (p->has_zero_points ? byoc_compressed_said_of(p, group, panel + c) : 0);
}

/* Groups first..last of all rows, as byoc_round_groups_avx2, but in their order. */
BYOC_FUNCTION void byoc_compressed_round(const byoc_compressed_params* p, const float* src,
                                         char* rounded, int64_t first, int64_t last) {
  const float magic = 12582912.f; /* adding it rounds to an integer */
  const int64_t groups = p->depth / p->group;
  for (int64_t i = first; i < last; ++i) {
    const float* from = src + i * p->group;
    char* row = rounded + i / groups * byoc_compressed_rounded_bytes(p);
    int8_t* to = (int8_t*)row + i % groups * p->group;
    byoc_rounded* said = (byoc_rounded*)(row + byoc_compressed_said(p, i % groups));
    int32_t most = 0, sum = 0;
    for (int64_t k = 0; k < p->group; ++k) {
      int32_t bits;
      memcpy(&bits, from + k, 4);
      bits &= 0x7fffffff;
      most = bits > most ? bits : most;
    }
    byoc_compressed_scale(most, said);
    for (int64_t k = 0; k < p->group; ++k) {
      to[k] = (int8_t)(said->inverse == 0 ? 0 : (from[k] * said->inverse + magic) - magic);
      sum += to[k];
    }
    byoc_compressed_say(p, sum, said);
  }
}

/* The columns first..last on such a CPU, without post-operations. */
BYOC_FUNCTION void byoc_compressed_plain(const byoc_compressed_params* p, void* const* data,
                                         const char* rounded, int64_t first, int64_t last) {
  const int64_t panel = byoc_compressed_panel(p), groups = p->depth / p->group;
  for (int64_t n = first; n < last; ++n) {
    const char* column = (const char*)data[1] + n / panel * byoc_compressed_panel_bytes(p);
    for (int64_t m = 0; m < p->rows; ++m) {
      const float* src = (const float*)data[0] + m * p->depth;
      const char* row = rounded + m * byoc_compressed_rounded_bytes(p);
      float sum = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const char* group = column + g * byoc_compressed_group_bytes(p);
        float of_group = 0, scale = 1;
        if (p->rounds) scale = ((const byoc_rounded*)(row + byoc_compressed_said(p, g)))->scale;
        for (int64_t k = 0; k < p->group; ++k) {
          const int64_t at = g * p->group + k;
          of_group += (p->rounds ? (float)(int8_t)row[at] : src[at]) *
                      byoc_compressed_weight(p, group, k, n % panel);
        }
        sum += scale * (of_group * byoc_compressed_said_of(p, group, n % panel));
      }
      ((float*)data[byoc_compressed_dst(p)])[m * p->columns + n] = sum;
    }
  }
}

BYOC_FUNCTION void byoc_compressed_matmul_part(const byoc_compressed_params* p, void* const* data,
                                               void* scratch, int64_t part, int64_t parts) {
  const float* src = (const float*)data[0];
  const int64_t copies = byoc_compressed_copies(p);
  const int64_t bytes = p->rows * byoc_compressed_rounded_bytes(p);
  char* rounded = (char*)scratch + (copies > 1 ? part * bytes : 0);
  float* own = (float*)((char*)scratch + copies * bytes) + part * byoc_compressed_thread_floats(p);
  if (p->rounds) {
    const int64_t groups = p->rows * (p->depth / p->group);
    const int64_t first = copies > 1 ? 0 : groups * part / parts;
    const int64_t last = copies > 1 ? groups : groups * (part + 1) / parts;
    if (p->isa == 0) {
      byoc_compressed_round(p, src, rounded, first, last);
    } else {
      BYOC_FOR_ISA(p->isa, round_groups, (p, src, rounded, first, last));
    }
    if (copies == 1) byoc_wait_for_team(parts);
  }
  if (p->isa == 0) {
    byoc_compressed_plain(p, data, rounded, p->columns * part / parts,
                          p->columns * (part + 1) / parts);
  } else {
    BYOC_FOR_ISA(p->isa, compressed_part, (p, data, rounded, own, part, parts));
  }
}

/* The kernel. data: source, packed weights, the operands of the post-operations, result. */
BYOC_KERNEL_BY(compressed_matmul, byoc_compressed_params, p->threads,
               byoc_compressed_matmul_part(p, data, scratch, part, parts))

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* Rows whose sums stay in registers, beside those of a group and four vectors of weights. */
#define BYOC_DIRECT (BYOC_LANES == 16 ? 4 : 2)
#define BYOC_WIDTH (4 * BYOC_LANES)

/* Weight `i` of those in each word, as a part of the mantissa of a number that is 2^n larger, where
   the lowest of its bits is 1. */
#ifdef BYOC_SIMD_AVX512
BYOC_INLINE BYOC_VEC BYOC_NAME(bytes)(__m512i words, const int i) {
  const __m512i v = _mm512_maskz_srli_epi32(0xffff, words, (unsigned)(8 * i));
  const __m512i bits = _mm512_and_si512(v, _mm512_set1_epi32(255));
  return (BYOC_VEC)_mm512_castsi512_ps(_mm512_or_si512(bits, _mm512_set1_epi32(150 << 23))) -
         (8388608.f + 128);
}
/* The lowest four bits of an index choose one of the values. */
BYOC_INLINE BYOC_VEC BYOC_NAME(nibbles)(__m512i words, const int i) {
  const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (BYOC_VEC)_mm512_maskz_permutexvar_ps(
      0xffff, _mm512_maskz_srli_epi32(0xffff, words, (unsigned)(4 * i)), values);
}
#else
BYOC_INLINE BYOC_VEC BYOC_NAME(bytes)(__m256i words, const int i) {
  const __m256i of = _mm256_setr_epi32(i, 4 + i, 8 + i, 12 + i, i, 4 + i, 8 + i, 12 + i);
  const __m256i none = _mm256_set1_epi32((int)0x80808000); /* bytes that become zero */
  const __m256i bits = _mm256_shuffle_epi8(words, _mm256_or_si256(of, none));
  return (BYOC_VEC)_mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(150 << 23))) -
         (8388608.f + 128);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(nibbles)(__m256i words, const int i) {
  const int shift = i < 5 ? 4 * i : 4 * i - 20;
  const __m256i v = i < 5 ? words : _mm256_srli_epi32(words, 20);
  const __m256i bits = _mm256_and_si256(v, _mm256_set1_epi32(15 << shift));
  const __m256i exponent = _mm256_set1_epi32((150 - shift) << 23);
  const float large = (float)(1 << (23 - shift));
  return (BYOC_VEC)_mm256_castsi256_ps(_mm256_or_si256(bits, exponent)) - (large + 8);
}
#endif

BYOC_INLINE BYOC_VEC BYOC_NAME(weight)(const int bits, BYOC_INTS words, const int i) {
  return bits == 8 ? BYOC_NAME(bytes)(words, i) : BYOC_NAME(nibbles)(words, i);
}

/* totals += a b for one panel: as many rows of `a` as `rows`, `groups` groups of packed weights. */
BYOC_INLINE void BYOC_NAME(compressed_rows)(const int rows, const int bits, const int has_zeros,
                                            const byoc_compressed_params* p, const float* a,
                                            const char* b, float* totals) {
  const int64_t groups = p->depth / p->group, group = p->group, head = byoc_compressed_head(p);
  BYOC_VEC total[4][4];
  BYOC_UNROLL
  for (int i = 0; i < 4 * rows; ++i) total[i / 4][i % 4] = BYOC_NAME(set)(0.f);
  for (int64_t g = 0; g < groups; ++g, a += group) {
    const char* q = b + head;
    BYOC_VEC sums[4][4], zero[4], scale[4];
    BYOC_UNROLL
    for (int i = 0; i < 4 * rows; ++i) sums[i / 4][i % 4] = BYOC_NAME(set)(0.f);
    if (has_zeros) BYOC_NAME(load_four)(b + head / 2, p->scale_bits, zero);
    for (int64_t k = 0; k < group; k += 32 / bits, q += 4 * BYOC_WIDTH) {
      BYOC_INTS words[4];
      BYOC_UNROLL
      for (int j = 0; j < 4; ++j) {
        __builtin_prefetch(q + 4096 + 4 * j * BYOC_LANES);
        words[j] = BYOC_NAME(load_ints)(q + 4 * j * BYOC_LANES);
      }
      BYOC_UNROLL
      for (int i = 0; i < 32 / bits; ++i) {
        BYOC_UNROLL
        for (int j = 0; j < 4; ++j) {
          BYOC_VEC w = BYOC_NAME(weight)(bits, words[j], i);
          if (has_zeros) w -= zero[j];
          BYOC_UNROLL
          for (int r = 0; r < rows; ++r) sums[r][j] += a[r * p->depth + k + i] * w;
        }
      }
    }
    BYOC_NAME(load_four)(b, p->scale_bits, scale);
    BYOC_UNROLL
    for (int j = 0; j < 4; ++j) {
      BYOC_UNROLL
      for (int r = 0; r < rows; ++r) total[r][j] += scale[j] * sums[r][j];
    }
    b += byoc_compressed_group_bytes(p);
  }
  BYOC_UNROLL
  for (int i = 0; i < 4 * rows; ++i) {
    BYOC_NAME(store)(totals + i / 4 * BYOC_WIDTH + i % 4 * BYOC_LANES, total[i / 4][i % 4]);
  }
}

BYOC_NO_INLINE void BYOC_NAME(compressed_direct)(int rows, const byoc_compressed_params* p,
                                                 const float* a, const char* b, float* totals) {
#define BYOC_CASE(rows, bits, zeros)                                \
  case (rows) * 4 + (bits) / 8 * 2 + (zeros):                       \
    BYOC_NAME(compressed_rows)(rows, bits, zeros, p, a, b, totals); \
    break;
#define BYOC_CASES(rows) \
  BYOC_CASE(rows, 4, 0) BYOC_CASE(rows, 4, 1) BYOC_CASE(rows, 8, 0) BYOC_CASE(rows, 8, 1)
  switch (rows * 4 + p->bits / 8 * 2 + p->has_zero_points) {
    BYOC_CASES(1)
    BYOC_CASES(2)
#ifdef BYOC_SIMD_AVX512
    BYOC_CASES(3)
    BYOC_CASES(4)
#endif
    default:
      break;
  }
#undef BYOC_CASES
#undef BYOC_CASE
}

/* The weights of one group as numbers, in two panels of a product, which are `apart`. */
BYOC_INLINE void BYOC_NAME(decompress_bits)(const int bits, const byoc_compressed_params* p,
                                            const char* b, float* to, int64_t apart) {
  const char* q = b + byoc_compressed_head(p);
  BYOC_VEC scale[4], zero[4];
  BYOC_NAME(load_four)(b, p->scale_bits, scale);
  BYOC_UNROLL
  for (int j = 0; j < 4; ++j) zero[j] = BYOC_NAME(set)(0.f);
  if (p->has_zero_points)
    BYOC_NAME(load_four)(b + byoc_compressed_head(p) / 2, p->scale_bits, zero);
  for (int64_t k = 0; k < p->group; k += 32 / bits, q += 4 * BYOC_WIDTH) {
    BYOC_UNROLL
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(q + 4096 + 4 * j * BYOC_LANES);
      const BYOC_INTS words = BYOC_NAME(load_ints)(q + 4 * j * BYOC_LANES);
      BYOC_UNROLL
      for (int i = 0; i < 32 / bits; ++i) {
        BYOC_NAME(store)
        (to + j / 2 * apart + (k + i) * BYOC_PANEL + j % 2 * BYOC_LANES,
         (BYOC_NAME(weight)(bits, words, i) - zero[j]) * scale[j]);
      }
    }
  }
}
BYOC_NO_INLINE void BYOC_NAME(decompress)(const byoc_compressed_params* p, const char* b, float* to,
                                          int64_t apart) {
  if (p->bits == 8) {
    BYOC_NAME(decompress_bits)(8, p, b, to, apart);
  } else {
    BYOC_NAME(decompress_bits)(4, p, b, to, apart);
  }
}

/* The largest of some numbers, or their sum. */
BYOC_INLINE int32_t BYOC_NAME(across)(BYOC_INTS v, const int is_sum) {
#ifdef BYOC_SIMD_AVX512
  const __m256i low = _mm512_maskz_extracti32x8_epi32(0xff, v, 0);
  const __m256i high = _mm512_maskz_extracti32x8_epi32(0xff, v, 1);
  const __m256i eight = is_sum ? _mm256_add_epi32(low, high) : _mm256_max_epi32(low, high);
#else
  const __m256i eight = v;
#endif
  __m128i of = _mm256_castsi256_si128(eight), other = _mm256_extracti128_si256(eight, 1);
  BYOC_UNROLL
  for (int i = 0; i < 3; ++i) {
    of = is_sum ? _mm_add_epi32(of, other) : _mm_max_epi32(of, other);
    other = i == 0 ? _mm_shuffle_epi32(of, 0x4e) : _mm_shuffle_epi32(of, 0xb1);
  }
  return _mm_cvtsi128_si32(of);
}

/* Rounds `lanes` numbers, which are between -127 and 127 or NaN and then 0, and stores their bytes;
   of each eight the even ones first, if asked for. */
BYOC_INLINE BYOC_INTS BYOC_NAME(round_some)(BYOC_VEC x, int lanes, int evens_first, int8_t* to) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
#ifdef BYOC_SIMD_AVX512
  const __mmask16 is_number = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_ORD_Q);
  const __m512i ints = _mm512_maskz_cvtps_epi32(is_number, (__m512)x);
  __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, ints);
#else
  const __m256i ints =
      _mm256_and_si256(_mm256_cvtps_epi32((__m256)x),
                       _mm256_castps_si256(_mm256_cmp_ps((__m256)x, (__m256)x, _CMP_ORD_Q)));
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  __m128i bytes = _mm_packs_epi16(words, words);
#endif
  if (evens_first) bytes = _mm_shuffle_epi8(bytes, order);
  if (lanes == 16) {
    _mm_storeu_si128((__m128i*)to, bytes);
  } else {
    _mm_storel_epi64((__m128i*)to, bytes);
  }
  return ints;
}

/* Rounds `count` groups of a row of the source; nothing that is not finite is left in them: their
   scale is NaN then, and with it each result of the row. All scales come first, since a group waits
   long for its own. */
BYOC_INLINE void BYOC_NAME(round_row)(const byoc_compressed_params* p, const int64_t group,
                                      const float* from, int64_t count, int8_t* to,
                                      byoc_rounded* said) {
  const BYOC_INTS magnitude = BYOC_OP(set1_epi32)(0x7fffffff);
  for (int64_t g = 0; g < count; ++g) {
    BYOC_INTS most = BYOC_OP(set1_epi32)(0);
    for (int64_t k = 0; k < group; k += BYOC_LANES) {
      const int lanes = (int)byoc_min(BYOC_LANES, group - k); /* or 8 */
      const BYOC_INTS bits = (BYOC_INTS)BYOC_NAME(load_some)(from + g * group + k, lanes);
      most = BYOC_CONVERT(max_epi32, most, bits & magnitude);
    }
    byoc_compressed_scale(BYOC_NAME(across)(most, 0), said + g);
  }
  for (int64_t g = 0; g < count; ++g, from += group, to += group) {
    const BYOC_VEC inverse = BYOC_NAME(set)(said[g].inverse);
    BYOC_INTS sum = BYOC_OP(set1_epi32)(0);
    for (int64_t k = 0; k < group; k += BYOC_LANES) {
      const int lanes = (int)byoc_min(BYOC_LANES, group - k);
      const BYOC_VEC x = BYOC_NAME(load_some)(from + k, lanes) * inverse;
      sum = BYOC_OP(add_epi32)(sum, BYOC_NAME(round_some)(x, lanes, p->bits == 4, to + k));
    }
    byoc_compressed_say(p, BYOC_NAME(across)(sum, 1), said + g);
  }
}

/* Groups first..last of all rows. */
BYOC_NO_INLINE void BYOC_NAME(round_groups)(const byoc_compressed_params* p, const float* src,
                                            char* rounded, int64_t first, int64_t last) {
  const int64_t groups = p->depth / p->group;
  for (int64_t count; first < last; first += count) {
    const int64_t g = first % groups;
    char* row = rounded + first / groups * byoc_compressed_rounded_bytes(p);
    int8_t* to = (int8_t*)row + g * p->group;
    byoc_rounded* said = (byoc_rounded*)(row + byoc_compressed_said(p, g));
    count = byoc_min(groups - g, last - first);
    if (p->group == 32) { /* that of most files, as a constant */
      BYOC_NAME(round_row)(p, 32, src + first * 32, count, to, said);
    } else {
      BYOC_NAME(round_row)(p, p->group, src + first * p->group, count, to, said);
    }
  }
}

/* One panel of the result for at most BYOC_COMPRESSED_ROWS rows from `row` on. */
BYOC_NO_INLINE void BYOC_NAME(compressed_panel)(const byoc_compressed_params* p, void* const* data,
                                                const byoc_results* results, const char* rounded,
                                                int64_t row, int64_t rows, int64_t panel,
                                                float* scratch) {
  const float* a = (const float*)data[0] + row * p->depth;
  const char* b = (const char*)data[1] + panel * byoc_compressed_panel_bytes(p);
  const int64_t groups = p->depth / p->group, block = byoc_compressed_block_groups(p);
  float* sums = scratch;
  float* weights = scratch + rows * BYOC_WIDTH;
  const byoc_position at = {0, 0, row, panel * BYOC_WIDTH};
  if (p->rounds) {
    const char* source = rounded + row * byoc_compressed_rounded_bytes(p);
#if BYOC_HAS_VNNI
    if (p->has_vnni) {
      BYOC_NAME(integer_panel_vnni)(p, source, rows, b, (char*)weights, sums, results, at);
      return;
    }
#endif
    BYOC_NAME(integer_panel_pairs)(p, source, rows, b, (char*)weights, sums, results, at);
    return;
  }
  if (p->rows <= byoc_compressed_direct_rows(p)) {
    const byoc_passes passes = byoc_in_passes(rows, BYOC_DIRECT);
    for (int64_t pass = 0, top = 0; pass < passes.count; ++pass) {
      const int64_t present = byoc_pass_rows(&passes, pass);
      BYOC_NAME(compressed_direct)((int)present, p, a + top * p->depth, b, sums + top * BYOC_WIDTH);
      top += present;
    }
  } else {
    for (int64_t g = 0; g < groups; g += block) {
      const int64_t some = byoc_min(block, groups - g), depth = some * p->group;
      for (int64_t i = 0; i < some; ++i, b += byoc_compressed_group_bytes(p)) {
        BYOC_NAME(decompress)(p, b, weights + i * p->group * BYOC_PANEL, depth * BYOC_PANEL);
      }
      byoc_matrices m = byoc_plain_product(a + g * p->group, p->depth, weights, depth * BYOC_PANEL,
                                           depth, sums, BYOC_WIDTH);
      if (g > 0) m.start = sums;
      m.start_row = BYOC_WIDTH;
      BYOC_NAME(products)(rows, 2, &m, NULL);
    }
  }
  BYOC_NAME(finish_sums)(results, sums, BYOC_WIDTH, rows, at,
                         byoc_min(p->columns, at.channel + BYOC_WIDTH));
}

/* The panels and rows of one thread of a team; `own`: its scratch memory. */
BYOC_NO_INLINE void BYOC_NAME(compressed_part)(const byoc_compressed_params* p, void* const* data,
                                               const char* rounded, float* own, int64_t thread,
                                               int64_t team) {
  const int64_t chunks = byoc_compressed_chunks(p);
  const int64_t tasks = byoc_compressed_panels(p) * chunks;
  const byoc_strides dst = {0, 0, p->columns, 0, p->columns};
  const byoc_results results =
      byoc_results_of((const byoc_post_op*)(p + 1), p->post_ops, data, 2, &dst);
  for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
    const int64_t row = p->rows * (task % chunks) / chunks;
    const int64_t end = p->rows * (task % chunks + 1) / chunks;
    BYOC_NAME(compressed_panel)(p, data, &results, rounded, row, end - row, task / chunks, own);
  }
}

#undef BYOC_DIRECT
#undef BYOC_WIDTH

#endif /* BYOC_COMPRESSED_MATMUL_H_ */
