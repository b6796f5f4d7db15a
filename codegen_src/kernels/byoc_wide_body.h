/* SPDX-License-Identifier: Apache-2.0
   Vectors of double and of unsigned integers of 64 bits, half as many as of float, choices between
   vectors, and the hyperbolic tangent, which needs such. Included by bodies of kernels behind
   byoc_vector.h; the functions have a guard per instruction set, since several bodies may include
   them. */

#define BYOC_WIDE BYOC_NAME(wide)
#define BYOC_LONGS BYOC_NAME(longs)

#if (defined(BYOC_SIMD_AVX512) && !defined(BYOC_HAVE_WIDE_AVX512)) || \
    (defined(BYOC_SIMD_AVX2) && !defined(BYOC_HAVE_WIDE_AVX2))
#ifdef BYOC_SIMD_AVX512
#define BYOC_HAVE_WIDE_AVX512
#else
#define BYOC_HAVE_WIDE_AVX2
#endif

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

#endif
