/* SPDX-License-Identifier: Apache-2.0
   Vectors of floats; of integers, for numbers that are loaded from bytes and stored in them; of
   double and of unsigned integers of 64 bits, half as many as of float. Included by byoc_vector.h,
   once per instruction set; no include guard. */

typedef float BYOC_VEC __attribute__((vector_size(BYOC_LANES * 4)));

BYOC_INLINE BYOC_VEC BYOC_NAME(load)(const float* p) {
  BYOC_VEC v;
  memcpy(&v, p, sizeof(v));
  return v;
}
BYOC_INLINE void BYOC_NAME(store)(float* p, BYOC_VEC v) { memcpy(p, &v, sizeof(v)); }

BYOC_INLINE BYOC_VEC BYOC_NAME(set)(float x) { return (BYOC_VEC)BYOC_OP(set1_ps)(x); }
/* `b` where `a` and `b` are unordered or equal, as the instruction: BYOC_NAME(max)(limit, x) keeps
 * a NaN of x. */
BYOC_INLINE BYOC_VEC BYOC_NAME(max)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)BYOC_CONVERT(max_ps, (BYOC_FLOATS)a, (BYOC_FLOATS)b);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(min)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)BYOC_CONVERT(min_ps, (BYOC_FLOATS)a, (BYOC_FLOATS)b);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(sqrt)(BYOC_VEC x) {
  return (BYOC_VEC)BYOC_CONVERT(sqrt_ps, (BYOC_FLOATS)x);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(power_of_two)(BYOC_VEC n) {
  const BYOC_INTS e =
      BYOC_OP(add_epi32)(BYOC_CONVERT(cvtps_epi32, (BYOC_FLOATS)n), BYOC_OP(set1_epi32)(127));
  return (BYOC_VEC)BYOC_CONVERT(slli_epi32, e, 23);
}

#ifdef BYOC_SIMD_AVX512
/* x < 0 ? negative : x */
BYOC_INLINE BYOC_VEC BYOC_NAME(if_negative)(BYOC_VEC x, BYOC_VEC negative) {
  const __mmask16 below = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return (BYOC_VEC)_mm512_mask_blend_ps(below, (__m512)x, (__m512)negative);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(round)(BYOC_VEC x) {
  return (BYOC_VEC)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
}
/* The first `lanes` numbers; nothing behind them is touched. */
BYOC_INLINE BYOC_VEC BYOC_NAME(load_some)(const float* p, int lanes) {
  return (BYOC_VEC)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
}
BYOC_INLINE void BYOC_NAME(store_some)(float* p, BYOC_VEC v, int lanes) {
  if (lanes == BYOC_LANES) {
    BYOC_NAME(store)(p, v);
  } else {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1), (__m512)v);
  }
}
#else
BYOC_INLINE BYOC_VEC BYOC_NAME(if_negative)(BYOC_VEC x, BYOC_VEC negative) {
  const __m256 below = _mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return (BYOC_VEC)_mm256_blendv_ps((__m256)x, (__m256)negative, below);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(round)(BYOC_VEC x) {
  return (BYOC_VEC)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
BYOC_INLINE __m256i BYOC_NAME(mask)(int lanes) {
  const __m256i index = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(load_some)(const float* p, int lanes) {
  return lanes == BYOC_LANES ? BYOC_NAME(load)(p)
                             : (BYOC_VEC)_mm256_maskload_ps(p, BYOC_NAME(mask)(lanes));
}
/* In pieces: some CPUs, as the Zen 3, take ten times as long for a store with a mask. */
BYOC_INLINE void BYOC_NAME(store_some)(float* p, BYOC_VEC v, int lanes) {
  __m128 part = _mm256_castps256_ps128((__m256)v);
  if (lanes == BYOC_LANES) {
    BYOC_NAME(store)(p, v);
    return;
  }
  if (lanes & 4) {
    _mm_storeu_ps(p, part);
    p += 4;
    part = _mm256_extractf128_ps((__m256)v, 1);
  }
  if (lanes & 2) {
    _mm_storel_pi((__m64*)p, part);
    p += 2;
    part = _mm_movehl_ps(part, part);
  }
  if (lanes & 1) _mm_store_ss(p, part);
}
#endif

/* The sum of all lanes: halves are added until one is left. */
BYOC_INLINE float BYOC_NAME(sum_lanes)(BYOC_VEC v) {
#ifdef BYOC_SIMD_AVX512
  const __m256 half = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 0),
                                    _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#else
  const __m256 half = (__m256)v;
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* x limited to [low, high]; a NaN stays. */
BYOC_INLINE BYOC_VEC BYOC_NAME(clip)(BYOC_VEC x, BYOC_VEC low, BYOC_VEC high) {
  return BYOC_NAME(min)(high, BYOC_NAME(max)(low, x));
}

/* exp(x), x between -88 and 89: zero below -87.7, infinity from 88.4 on; 2^n exp(r) with |r| <= ln
 * 2 / 2 and the Taylor series of order 7 (2e-7 of the value). */
BYOC_INLINE BYOC_VEC BYOC_NAME(exp)(BYOC_VEC x) {
  const BYOC_VEC magic = BYOC_NAME(set)(12582912.f); /* adding it rounds to an integer */
  const BYOC_VEC n = (x * 1.44269504f + magic) - magic;
  const BYOC_VEC r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  BYOC_VEC p = BYOC_NAME(set)(1.f / 5040);
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + .5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  return p * BYOC_NAME(power_of_two)(n);
}

/* 1 / (1 + exp(-x)), zero from -88.4 on. */
BYOC_INLINE BYOC_VEC BYOC_NAME(logistic)(BYOC_VEC x) {
  const BYOC_VEC one = BYOC_NAME(set)(1.f);
  return one /
         (one + BYOC_NAME(exp)(BYOC_NAME(clip)(-x, BYOC_NAME(set)(-87.f), BYOC_NAME(set)(89.f))));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|). With f = e / (2 + e), at most 1/3, the
   logarithm is 2 (f + f^3/3 + f^5/5 ...). */
BYOC_INLINE BYOC_VEC BYOC_NAME(softplus)(BYOC_VEC x) {
  const BYOC_VEC size = BYOC_NAME(min)(BYOC_NAME(set)(88.f), BYOC_NAME(if_negative)(x, -x));
  const BYOC_VEC e = BYOC_NAME(exp)(-size), f = e / (e + 2.f), s = f * f;
  BYOC_VEC p = BYOC_NAME(set)(2.f / 13);
  p = p * s + 2.f / 11;
  p = p * s + 2.f / 9;
  p = p * s + 2.f / 7;
  p = p * s + 2.f / 5;
  p = p * s + 2.f / 3;
  p = p * s + 2.f;
  return BYOC_NAME(max)(BYOC_NAME(set)(0.f), x) + p * f;
}

/* x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with erfc by formula 7.1.26
   of Abramowitz and Stegun (2e-7). Beyond 16 the second term is nothing; of -infinity, whose
   definition is infinity times 0, it is NaN. */
BYOC_INLINE BYOC_VEC BYOC_NAME(gelu_erf)(BYOC_VEC x) {
  const BYOC_VEC one = BYOC_NAME(set)(1.f), zero = BYOC_NAME(set)(0.f);
  const BYOC_VEC size = BYOC_NAME(min)(BYOC_NAME(set)(16.f), BYOC_NAME(if_negative)(x, -x));
  const BYOC_VEC z = size * 0.70710678f;
  const BYOC_VEC t = one / (one + z * 0.3275911f);
  BYOC_VEC p = BYOC_NAME(set)(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const BYOC_VEC e = BYOC_NAME(exp)(BYOC_NAME(max)(BYOC_NAME(set)(-87.f), -z * z));
  return BYOC_NAME(max)(zero, x) + (zero * BYOC_NAME(min)(zero, x) - .5f * size * (p * t * e));
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, where (1 + tanh u) / 2 = logistic(2 u) */
BYOC_INLINE BYOC_VEC BYOC_NAME(gelu_tanh)(BYOC_VEC x) {
  return x * BYOC_NAME(logistic)(x * (1.59576912f + 0.0713548163f * x * x));
}

BYOC_INLINE BYOC_INTS BYOC_NAME(load_ints)(const void* p) {
  BYOC_INTS v;
  memcpy(&v, p, sizeof(v));
  return v;
}
/* Vector `j` of float, or of float16 where numbers have 16 bits. */
BYOC_INLINE BYOC_VEC BYOC_NAME(load_wide)(const char* from, int64_t bits, int j) {
  if (bits == 32) return BYOC_NAME(load)((const float*)from + j * BYOC_LANES);
  return (BYOC_VEC)BYOC_CONVERT(cvtph_ps, BYOC_LOAD_SHORTS(from + 2 * j * BYOC_LANES));
}
BYOC_INLINE void BYOC_NAME(load_four)(const char* from, int64_t bits, BYOC_VEC* to) {
  BYOC_UNROLL
  for (int j = 0; j < 4; ++j) to[j] = BYOC_NAME(load_wide)(from, bits, j);
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
  } else if (dtype == BYOC_BF16 || dtype == BYOC_F16) {
    uint16_t part[BYOC_LANES] = {0};
    const uint16_t* shorts = (const uint16_t*)from + at;
    if (lanes < BYOC_LANES) shorts = (const uint16_t*)memcpy(part, shorts, (size_t)lanes * 2);
    if (dtype == BYOC_F16) return (BYOC_VEC)BYOC_CONVERT(cvtph_ps, BYOC_LOAD_SHORTS(shorts));
    const BYOC_INTS ints_of = BYOC_CONVERT(cvtepu16_epi32, BYOC_LOAD_SHORTS(shorts));
    result = (BYOC_VEC)BYOC_CONVERT(slli_epi32, ints_of, 16);
  } else {
    const __m128i b = BYOC_NAME(load_bytes)((const uint8_t*)from + at, lanes);
    result = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, dtype == BYOC_S8 ? BYOC_CONVERT(cvtepi8_epi32, b)
                                                                  : BYOC_CONVERT(cvtepu8_epi32, b));
  }
  return result;
}

/* A row of numbers of any dtype times `scale`, up to a whole number of vectors. */
BYOC_INLINE void BYOC_NAME(load_row)(const void* from, int64_t at, const int64_t dtype,
                                     int64_t columns, float scale, float* to) {
  int64_t k = 0;
  for (; k + BYOC_LANES <= columns; k += BYOC_LANES) {
    BYOC_NAME(store)(to + k, BYOC_NAME(load_as)(from, at + k, dtype, BYOC_LANES) * scale);
  }
  if (k < columns) {
    const int lanes = (int)(columns - k);
    BYOC_NAME(store)(to + k, BYOC_NAME(load_as)(from, at + k, dtype, lanes) * scale);
  }
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

BYOC_INLINE BYOC_WIDE BYOC_NAME(set_wide)(double x) { return (BYOC_WIDE)BYOC_OP(set1_pd)(x); }
BYOC_INLINE BYOC_LONGS BYOC_NAME(set_longs)(int64_t x) { return (BYOC_LONGS){0} + (uint64_t)x; }

#ifdef BYOC_SIMD_AVX512
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

/* The natural logarithm of numbers above 0, in double, so that it is rounded once, which gives the
   nearest number for all of them (make docs-elementwise): of 2^e m that of m, which is between the
   roots of 1/2 and 2, and e ln 2. With f = (m - 1) / (m + 1), log m is 2 (f + f^3/3 + f^5/5 ...),
   |f| < 0.18.
 */
BYOC_INLINE BYOC_WIDE BYOC_NAME(wide_log)(BYOC_WIDE x) {
  const BYOC_LONGS root = BYOC_NAME(set_longs)(0x3fe6a09e667f3bcd); /* the root of 1/2 */
  const BYOC_LONGS shifted = (BYOC_LONGS)x + (BYOC_NAME(set_longs)(0x3ff0000000000000) - root);
  /* the bits of 2^52 plus an integer are those of 2^52, plus it */
  const BYOC_LONGS exponent = shifted >> 52;
  const BYOC_WIDE e = (BYOC_WIDE)(exponent | BYOC_NAME(set_longs)(0x4330000000000000)) -
                      BYOC_NAME(set_wide)(4503599627370496. + 1023.);
  const BYOC_WIDE m = (BYOC_WIDE)((shifted & BYOC_NAME(set_longs)(0x000fffffffffffff)) + root);
  const BYOC_WIDE f = (m - 1.) / (m + 1.);
  const BYOC_WIDE s = f * f;
  BYOC_WIDE p = BYOC_NAME(set_wide)(2. / 17);
  p = p * s + 2. / 15;
  p = p * s + 2. / 13;
  p = p * s + 2. / 11;
  p = p * s + 2. / 9;
  p = p * s + 2. / 7;
  p = p * s + 2. / 5;
  p = p * s + 2. / 3;
  p = p * s + 2.;
  return e * 0.69314718055994530942 + p * f;
}

/* For 0 it is -infinity, below 0 NaN; infinity and NaN stay. */
BYOC_INLINE BYOC_VEC BYOC_NAME(log)(BYOC_VEC x) {
  const BYOC_VEC zero = BYOC_NAME(set)(0.f), infinity = BYOC_NAME(set)(__builtin_inff());
  BYOC_WIDE parts[2];
  BYOC_VEC y;
  BYOC_UNROLL
  for (int i = 0; i < 2; ++i) parts[i] = BYOC_NAME(wide_log)(BYOC_NAME(widen)(x, i));
  y = BYOC_NAME(narrow_wide)(parts[0], parts[1]);
  y = BYOC_NAME(pick)((x > zero) & (x < infinity), y, x);
  y = BYOC_NAME(pick)(x < zero, zero / zero, y);
  return BYOC_NAME(pick)(x == zero, -infinity, y);
}
