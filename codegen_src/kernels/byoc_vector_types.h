/* SPDX-License-Identifier: Apache-2.0
   Vectors of integers, for numbers that are loaded from bytes and stored in them; of double and of
   unsigned integers of 64 bits, half as many as of float; and the hyperbolic tangent, which needs
   such. Included by byoc_vector.h, once per instruction set; no include guard. */

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

typedef double BYOC_WIDE __attribute__((vector_size(BYOC_LANES * 4)));
typedef uint64_t BYOC_LONGS __attribute__((vector_size(BYOC_LANES * 4)));
typedef int32_t BYOC_NAME(bits) __attribute__((vector_size(BYOC_LANES * 4)));

#ifdef BYOC_SIMD_AVX512
BYOC_INLINE BYOC_WIDE BYOC_NAME(set_wide)(double x) { return (BYOC_WIDE)_mm512_set1_pd(x); }
BYOC_INLINE BYOC_LONGS BYOC_NAME(set_longs)(int64_t x) { return (BYOC_LONGS)_mm512_set1_epi64(x); }
BYOC_INLINE BYOC_LONGS BYOC_NAME(shift_right)(BYOC_LONGS x, unsigned bits) {
  return (BYOC_LONGS)_mm512_maskz_srli_epi64(0xff, (__m512i)x, bits);
}
/* The first or the second half of a vector; and both halves, rounded. */
BYOC_INLINE BYOC_WIDE BYOC_NAME(widen)(BYOC_VEC x, const int half) {
  const __m256 part = half ? _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 1)
                           : _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 0);
  return (BYOC_WIDE)_mm512_maskz_cvtps_pd(0xff, part);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(narrow_wide)(BYOC_WIDE low, BYOC_WIDE high) {
  const __m512 first = _mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(0xff, (__m512d)low));
  const __m256 second = _mm512_maskz_cvtpd_ps(0xff, (__m512d)high);
  return (BYOC_VEC)_mm512_maskz_insertf32x8(0xffff, first, second, 1);
}
#else
BYOC_INLINE BYOC_WIDE BYOC_NAME(set_wide)(double x) { return (BYOC_WIDE)_mm256_set1_pd(x); }
BYOC_INLINE BYOC_LONGS BYOC_NAME(set_longs)(int64_t x) { return (BYOC_LONGS)_mm256_set1_epi64x(x); }
BYOC_INLINE BYOC_LONGS BYOC_NAME(shift_right)(BYOC_LONGS x, int bits) {
  return (BYOC_LONGS)_mm256_srli_epi64((__m256i)x, bits);
}
BYOC_INLINE BYOC_WIDE BYOC_NAME(widen)(BYOC_VEC x, const int half) {
  return (BYOC_WIDE)_mm256_cvtps_pd(half ? _mm256_extractf128_ps((__m256)x, 1)
                                         : _mm256_castps256_ps128((__m256)x));
}
BYOC_INLINE BYOC_VEC BYOC_NAME(narrow_wide)(BYOC_WIDE low, BYOC_WIDE high) {
  const __m256 first = _mm256_castps128_ps256(_mm256_cvtpd_ps((__m256d)low));
  return (BYOC_VEC)_mm256_insertf128_ps(first, _mm256_cvtpd_ps((__m256d)high), 1);
}
#endif

/* `a` where all bits are set, `b` where none is. */
BYOC_INLINE BYOC_VEC BYOC_NAME(pick)(BYOC_NAME(bits) where, BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)((where & (BYOC_NAME(bits))a) | (~where & (BYOC_NAME(bits))b));
}

/* Below 5/8 a polynomial, whose error is 1e-7 of the value; a NaN stays. */
BYOC_INLINE BYOC_VEC BYOC_NAME(tanh)(BYOC_VEC x) {
  const BYOC_VEC one = BYOC_NAME(set)(1.f), size = BYOC_NAME(if_negative)(x, -x), z = x * x;
  const BYOC_VEC twice = BYOC_NAME(min)(BYOC_NAME(set)(40.f), size + size);
  const BYOC_VEC high = one - 2.f / (BYOC_NAME(exp)(twice) + one);
  BYOC_VEC p = BYOC_NAME(set)(-0.0058807447f);
  p = p * z + 0.0208065882f;
  p = p * z - 0.0537947677f;
  p = p * z + 0.133321553f;
  p = p * z - 0.333333105f;
  p = p * z * x + x;
  return BYOC_NAME(pick)(size < 0.625f, p, BYOC_NAME(pick)(x < 0.f, -high, high));
}
