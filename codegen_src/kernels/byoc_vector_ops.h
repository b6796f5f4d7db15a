/* SPDX-License-Identifier: Apache-2.0
   Vectors of floats, and post-operations on them. Included by byoc_vector.h, once per instruction
   set; no include guard. */

typedef float BYOC_VEC __attribute__((vector_size(BYOC_LANES * 4)));

BYOC_INLINE BYOC_VEC BYOC_NAME(load)(const float* p) {
  BYOC_VEC v;
  memcpy(&v, p, sizeof(v));
  return v;
}
BYOC_INLINE void BYOC_NAME(store)(float* p, BYOC_VEC v) { memcpy(p, &v, sizeof(v)); }

#ifdef BYOC_SIMD_AVX512
BYOC_INLINE BYOC_VEC BYOC_NAME(set)(float x) { return (BYOC_VEC)_mm512_set1_ps(x); }
/* `b` where `a` and `b` are unordered or equal, as the instruction: BYOC_NAME(max)(limit, x) keeps
 * a NaN of x. */
BYOC_INLINE BYOC_VEC BYOC_NAME(max)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(min)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
}
/* x < 0 ? negative : x */
BYOC_INLINE BYOC_VEC BYOC_NAME(if_negative)(BYOC_VEC x, BYOC_VEC negative) {
  const __mmask16 below = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return (BYOC_VEC)_mm512_mask_blend_ps(below, (__m512)x, (__m512)negative);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(power_of_two)(BYOC_VEC n) {
  const __m512i e =
      _mm512_add_epi32(_mm512_maskz_cvtps_epi32(0xffff, (__m512)n), _mm512_set1_epi32(127));
  return (BYOC_VEC)_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, e, 23));
}
BYOC_INLINE BYOC_VEC BYOC_NAME(round)(BYOC_VEC x) {
  return (BYOC_VEC)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(sqrt)(BYOC_VEC x) {
  return (BYOC_VEC)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
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
BYOC_INLINE BYOC_VEC BYOC_NAME(set)(float x) { return (BYOC_VEC)_mm256_set1_ps(x); }
BYOC_INLINE BYOC_VEC BYOC_NAME(max)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)_mm256_max_ps((__m256)a, (__m256)b);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(min)(BYOC_VEC a, BYOC_VEC b) {
  return (BYOC_VEC)_mm256_min_ps((__m256)a, (__m256)b);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(if_negative)(BYOC_VEC x, BYOC_VEC negative) {
  const __m256 below = _mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return (BYOC_VEC)_mm256_blendv_ps((__m256)x, (__m256)negative, below);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(power_of_two)(BYOC_VEC n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)n), _mm256_set1_epi32(127));
  return (BYOC_VEC)_mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
BYOC_INLINE BYOC_VEC BYOC_NAME(round)(BYOC_VEC x) {
  return (BYOC_VEC)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
BYOC_INLINE BYOC_VEC BYOC_NAME(sqrt)(BYOC_VEC x) { return (BYOC_VEC)_mm256_sqrt_ps((__m256)x); }
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

/* x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with erfc by formula 7.1.26
   of Abramowitz and Stegun (2e-7). Beyond 16 the second term is nothing. */
BYOC_INLINE BYOC_VEC BYOC_NAME(gelu_erf)(BYOC_VEC x) {
  const BYOC_VEC one = BYOC_NAME(set)(1.f);
  const BYOC_VEC size = BYOC_NAME(min)(BYOC_NAME(set)(16.f), BYOC_NAME(if_negative)(x, -x));
  const BYOC_VEC z = size * 0.70710678f;
  const BYOC_VEC t = one / (one + z * 0.3275911f);
  BYOC_VEC p = BYOC_NAME(set)(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const BYOC_VEC e = BYOC_NAME(exp)(BYOC_NAME(max)(BYOC_NAME(set)(-87.f), -z * z));
  return BYOC_NAME(max)(BYOC_NAME(set)(0.f), x) - .5f * size * (p * t * e);
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, where (1 + tanh u) / 2 = logistic(2 u) */
BYOC_INLINE BYOC_VEC BYOC_NAME(gelu_tanh)(BYOC_VEC x) {
  return x * BYOC_NAME(logistic)(x * (1.59576912f + 0.0713548163f * x * x));
}

BYOC_INLINE BYOC_VEC BYOC_NAME(unary)(const byoc_post_op* op, int64_t kind, BYOC_VEC x) {
  const BYOC_VEC alpha = BYOC_NAME(set)(op->alpha), beta = BYOC_NAME(set)(op->beta),
                 zero = BYOC_NAME(set)(0.f);
  switch (kind) {
    case BYOC_RELU:
      return op->alpha == 0 ? BYOC_NAME(max)(zero, x) : BYOC_NAME(if_negative)(x, alpha * x);
    case BYOC_CLIP:
      return BYOC_NAME(clip)(x, alpha, beta);
    case BYOC_LINEAR:
      return alpha * x + beta;
    case BYOC_ABS:
      return BYOC_NAME(if_negative)(x, -x);
    case BYOC_SQUARE:
      return x * x;
    case BYOC_HARDSIGMOID:
      return BYOC_NAME(clip)(alpha * x + beta, zero, BYOC_NAME(set)(1.f));
    case BYOC_HARDSWISH:
      return x * BYOC_NAME(clip)(alpha * x + beta, zero, BYOC_NAME(set)(1.f));
    case BYOC_LOGISTIC:
      return BYOC_NAME(logistic)(x);
    case BYOC_SWISH:
      return x * BYOC_NAME(logistic)(alpha * x);
    case BYOC_GELU_ERF:
      return BYOC_NAME(gelu_erf)(x);
    case BYOC_GELU_TANH:
      return BYOC_NAME(gelu_tanh)(x);
    case BYOC_ROUND:
      return BYOC_NAME(round)(x);
    default:
      return x;
  }
}

BYOC_INLINE BYOC_VEC BYOC_NAME(binary)(int64_t kind, BYOC_VEC a, BYOC_VEC b) {
  switch (kind) {
    case BYOC_ADD:
      return a + b;
    case BYOC_SUB:
      return a - b;
    case BYOC_MUL:
      return a * b;
    case BYOC_DIV:
      return a / b;
    case BYOC_MAX:
      return BYOC_NAME(max)(a, b);
    case BYOC_MIN:
      return BYOC_NAME(min)(a, b);
    default:
      return a;
  }
}

/* A post-operation on rows x columns of the vectors `o`, of which there are all_rows x all_columns;
   their first channel is `channel`. `operand`: all of it, from the first of the vectors on where it
   has a number per element; NULL if there is none. */
BYOC_INLINE void BYOC_NAME(apply)(const byoc_post_op* op, const float* operand, int64_t channel,
                                  int lanes, int all_rows, int all_columns, int rows, int columns,
                                  BYOC_VEC* o) {
  const int all = all_rows * all_columns;
  if (operand == NULL) {
#define BYOC_CASE(kind)                                                    \
  case kind:                                                               \
    for (int i = 0; i < all; ++i) o[i] = BYOC_NAME(unary)(op, kind, o[i]); \
    break;
    switch (op->kind) {
      BYOC_CASE(BYOC_RELU)
      BYOC_CASE(BYOC_CLIP)
      BYOC_CASE(BYOC_LINEAR)
      BYOC_CASE(BYOC_ABS)
      BYOC_CASE(BYOC_SQUARE)
      BYOC_CASE(BYOC_HARDSIGMOID)
      BYOC_CASE(BYOC_HARDSWISH)
      BYOC_CASE(BYOC_LOGISTIC)
      BYOC_CASE(BYOC_SWISH)
      BYOC_CASE(BYOC_GELU_ERF)
      BYOC_CASE(BYOC_GELU_TANH)
      BYOC_CASE(BYOC_ROUND)
      default:
        break;
    }
#undef BYOC_CASE
  } else if (op->form == BYOC_PER_ELEMENT) {
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const float* p = operand + i * op->strides.row + j * op->strides.pixel;
        const int at = i * all_columns + j;
        o[at] = BYOC_NAME(binary)(op->kind, o[at], BYOC_NAME(load_some)(p, lanes));
      }
    }
  } else {
    const BYOC_VEC b = op->form == BYOC_PER_CHANNEL ? BYOC_NAME(load_some)(operand + channel, lanes)
                                                    : BYOC_NAME(set)(operand[0]);
    for (int i = 0; i < all; ++i) o[i] = BYOC_NAME(binary)(op->kind, o[i], b);
  }
}

/* All post-operations on such vectors, of which the first is at `at`. */
BYOC_INLINE void BYOC_NAME(post_operations)(const byoc_post_op* op, int64_t count,
                                            void* const* data, byoc_position at, int lanes,
                                            int all_rows, int all_columns, int rows, int columns,
                                            BYOC_VEC* o) {
  for (const byoc_post_op* end = op + count; op < end; ++op) {
    const float* operand = op->operand < 0 ? NULL : (const float*)data[op->operand];
    if (op->form == BYOC_PER_ELEMENT) operand += byoc_offset(&op->strides, &at);
    BYOC_NAME(apply)(op, operand, at.channel, lanes, all_rows, all_columns, rows, columns, o);
  }
}

/* Such vectors with their bias and post-operations, stored as results. */
BYOC_INLINE void BYOC_NAME(finish_vectors)(const byoc_results* r, byoc_position at, int lanes,
                                           const int all_rows, const int all_columns, int rows,
                                           int columns, BYOC_VEC* o) {
  const byoc_strides* s = &r->strides;
  float* to = r->to + byoc_offset(s, &at);
  if (r->bias != NULL) {
    const BYOC_VEC bias = BYOC_NAME(load_some)(r->bias + at.channel, lanes);
    for (int i = 0; i < all_rows * all_columns; ++i) o[i] += bias;
  }
  BYOC_NAME(post_operations)(r->post_ops, r->count, r->data, at, lanes, all_rows, all_columns, rows,
                             columns, o);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      BYOC_NAME(store_some)(to + i * s->row + j * s->pixel, o[i * all_columns + j], lanes);
    }
  }
}

/* `count` neighbouring pixels from `at` on, of at most `all`. */
BYOC_INLINE void BYOC_NAME(finish_pixels)(const int all, const byoc_results* r, const float* sums,
                                          int64_t step, int count, byoc_position at, int64_t end) {
  const float* from = sums - at.channel;
  for (; at.channel < end; at.channel += BYOC_LANES) {
    const int lanes = (int)byoc_min(end - at.channel, BYOC_LANES);
    BYOC_VEC o[4];
    for (int i = 0; i < all; ++i) {
      o[i] = BYOC_NAME(load)(from + at.channel + (i < count ? i : 0) * step);
    }
    BYOC_NAME(finish_vectors)(r, at, lanes, 1, all, 1, count, o);
  }
}

/* The results of sums in memory, `step` from one pixel to the next: `count` neighbouring pixels
   from `at` on, their channels up to `end`. There is room for whole vectors of sums. */
BYOC_NO_INLINE void BYOC_NAME(finish_sums)(const byoc_results* r, const float* sums, int64_t step,
                                           int64_t count, byoc_position at, int64_t end) {
  for (int64_t i = 0; i < count; i += 4, at.x += 4, sums += 4 * step) {
    if (count - i == 1) {
      BYOC_NAME(finish_pixels)(1, r, sums, step, 1, at, end);
    } else {
      BYOC_NAME(finish_pixels)(4, r, sums, step, (int)byoc_min(count - i, 4), at, end);
    }
  }
}
