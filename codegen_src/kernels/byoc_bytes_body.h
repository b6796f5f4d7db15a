/* SPDX-License-Identifier: Apache-2.0
   What byoc_vector.h has, and vectors of integers: numbers that are loaded from bytes and stored in
   them. Included by bodies of kernels in the place of byoc_vector.h; the functions have a guard per
   instruction set, since several bodies may include them. */

#include "byoc_vector.h"

#ifdef BYOC_SIMD_AVX512
#define BYOC_INTS __m512i
#define BYOC_OP(name) _mm512_##name
#define BYOC_CONVERT(name, ...) _mm512_maskz_##name(0xffff, __VA_ARGS__) /* GCC warns of others */
#else
#define BYOC_INTS __m256i
#define BYOC_OP(name) _mm256_##name
#define BYOC_CONVERT(name, ...) _mm256_##name(__VA_ARGS__)
#endif

#if (defined(BYOC_SIMD_AVX512) && !defined(BYOC_HAVE_BYTES_AVX512)) || \
    (defined(BYOC_SIMD_AVX2) && !defined(BYOC_HAVE_BYTES_AVX2))
#ifdef BYOC_SIMD_AVX512
#define BYOC_HAVE_BYTES_AVX512
#else
#define BYOC_HAVE_BYTES_AVX2
#endif

BYOC_INLINE BYOC_INTS BYOC_NAME(load_ints)(const void* p) {
  BYOC_INTS v;
  memcpy(&v, p, sizeof(v));
  return v;
}
BYOC_INLINE void BYOC_NAME(store_ints)(void* p, BYOC_INTS v) { memcpy(p, &v, sizeof(v)); }

/* `lanes` bytes. A whole vector is read at once: what is copied in parts must be written before it
   can be read, which takes longer than all that is done with it. */
BYOC_INLINE __m128i BYOC_NAME(load_bytes)(const uint8_t* from, int lanes) {
  uint8_t part[16] = {0};
  if (lanes == BYOC_LANES) {
#ifdef BYOC_SIMD_AVX512
    return _mm_loadu_si128((const __m128i*)from);
#else
    return _mm_loadl_epi64((const __m128i*)from);
#endif
  }
  memcpy(part, from, (size_t)lanes);
  return _mm_loadu_si128((const __m128i*)part);
}

/* `lanes` numbers of any dtype, from position `at` on. */
BYOC_INLINE BYOC_VEC BYOC_NAME(load_as)(const void* from, int64_t at, int64_t dtype, int lanes) {
  int32_t ints[BYOC_LANES] = {0};
  BYOC_VEC result;
  if (dtype == BYOC_F32) return BYOC_NAME(load_some)((const float*)from + at, lanes);
  if (dtype == BYOC_S32) {
    memcpy(ints, (const int32_t*)from + at, (size_t)lanes * 4);
    result = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, BYOC_NAME(load_ints)(ints));
  } else {
    const __m128i b = BYOC_NAME(load_bytes)((const uint8_t*)from + at, lanes);
    result = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, dtype == BYOC_S8 ? BYOC_CONVERT(cvtepi8_epi32, b)
                                                                  : BYOC_CONVERT(cvtepu8_epi32, b));
  }
  return result;
}

/* Numbers of 32 bits: rounded to the nearest integer, ties to the even one, and saturated. */
BYOC_INLINE void BYOC_NAME(store_as)(void* to, int64_t at, int64_t dtype, BYOC_VEC v, int lanes) {
  if (dtype == BYOC_F32) {
    BYOC_NAME(store_some)((float*)to + at, v, lanes);
    return;
  }
  const BYOC_VEC low = BYOC_NAME(set)(-2147483648.f), high = BYOC_NAME(set)(2147483520.f);
  const BYOC_INTS ints = BYOC_CONVERT(cvtps_epi32, BYOC_NAME(clip)(v, low, high));
  memcpy((int32_t*)to + at, &ints, (size_t)lanes * 4);
}

/* Two panels, rounded likewise, plus `zero` (in 16 bits), saturated in bytes: one behind the other.
 */
BYOC_INLINE BYOC_INTS BYOC_NAME(narrow)(const BYOC_VEC o[4], BYOC_INTS zero, const int is_signed) {
  const BYOC_VEC most = BYOC_NAME(set)(1e9f); /* of a larger one nothing is left in 32 bits */
  BYOC_INTS n[4];
  BYOC_UNROLL
  for (int i = 0; i < 4; ++i) n[i] = BYOC_CONVERT(cvtps_epi32, BYOC_NAME(min)(most, o[i]));
  const BYOC_INTS first = BYOC_OP(adds_epi16)(BYOC_OP(packs_epi32)(n[0], n[1]), zero);
  const BYOC_INTS second = BYOC_OP(adds_epi16)(BYOC_OP(packs_epi32)(n[2], n[3]), zero);
  const BYOC_INTS bytes =
      is_signed ? BYOC_OP(packs_epi16)(first, second) : BYOC_OP(packus_epi16)(first, second);
  /* In each part of 128 bits: four numbers of each vector. */
#ifdef BYOC_SIMD_AVX512
  return _mm512_maskz_permutexvar_epi32(
      0xffff, _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
#else
  return _mm256_permutevar8x32_epi32(bytes, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
#endif
}

/* Stores `columns` of each of two panels of bytes. */
BYOC_INLINE void BYOC_NAME(store_panels)(uint8_t* first, uint8_t* second, BYOC_INTS bytes,
                                         int64_t columns) {
  if (columns == BYOC_PANEL) {
#ifdef BYOC_SIMD_AVX512
    _mm256_storeu_si256((__m256i*)first, _mm512_maskz_extracti64x4_epi64(0xff, bytes, 0));
    _mm256_storeu_si256((__m256i*)second, _mm512_maskz_extracti64x4_epi64(0xff, bytes, 1));
#else
    _mm_storeu_si128((__m128i*)first, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i*)second, _mm256_extracti128_si256(bytes, 1));
#endif
    return;
  }
  uint8_t panels[2][BYOC_PANEL];
  BYOC_NAME(store_ints)(panels, bytes);
  memcpy(first, panels[0], (size_t)columns);
  memcpy(second, panels[1], (size_t)columns);
}

#endif
