/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_integer_body.h: sums become results. */

/* `lanes` numbers of any dtype, from position `at` on. */
BYOC_INLINE BYOC_VEC BYOC_NAME(load_as)(const void* from, int64_t at, int64_t dtype, int lanes) {
  int32_t ints[BYOC_LANES] = {0};
  BYOC_VEC result;
  if (dtype == BYOC_F32) return BYOC_NAME(load_some)((const float*)from + at, lanes);
  if (dtype == BYOC_S32) {
    memcpy(ints, (const int32_t*)from + at, (size_t)lanes * 4);
    result = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, BYOC_NAME(load_ints)(ints));
  } else {
    uint8_t bytes[16] = {0};
    if (lanes == BYOC_LANES) {
      memcpy(bytes, (const uint8_t*)from + at, BYOC_LANES);
    } else {
      memcpy(bytes, (const uint8_t*)from + at, (size_t)lanes);
    }
    const __m128i b = _mm_loadu_si128((const __m128i*)bytes);
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

/* What scales the sums of a panel, and the results. */
typedef struct {
  BYOC_VEC scale[2], bias[2], unit, shift;
  BYOC_INTS zero; /* `shift` in 16 bits */
} BYOC_NAME(integer_scaling);

/* `count` rows of `vectors` vectors (the last one of `lanes` numbers) that lie in `column`: scaled,
   with bias and post-operations, and stored from position `at` of the result on. */
BYOC_INLINE void BYOC_NAME(finish_rows)(const byoc_integer_params* p, const int count,
                                        const int vectors, int lanes, const int64_t dtype,
                                        const int32_t* sums,
                                        const BYOC_NAME(integer_scaling) * scaling, int64_t at,
                                        int64_t column, void* const* data) {
  enum { kAtOnce = 4 };
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  BYOC_VEC o[2][kAtOnce];
  BYOC_UNROLL
  for (int v = 0; v < vectors; ++v) {
    BYOC_UNROLL
    for (int i = 0; i < count; ++i) {
      const BYOC_INTS ints = BYOC_NAME(load_ints)(sums + i * BYOC_PANEL + v * BYOC_LANES);
      o[v][i] = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, ints) * scaling->scale[v] + scaling->bias[v];
    }
  }
  for (int64_t k = 0; k < p->post_ops; ++k) {
    const byoc_post_op* op = &post_ops[k];
    const void* operand = op->operand < 0 ? NULL : data[op->operand];
    for (int v = 0; v < vectors; ++v) {
      const int wide = v + 1 < vectors ? BYOC_LANES : lanes;
      if (operand == NULL || op->form != BYOC_PER_ELEMENT) {
        BYOC_NAME(apply)(op, (const float*)operand, column + v * BYOC_LANES, wide, count, 1, count,
                         1, o[v]);
        continue;
      }
      for (int i = 0; i < count; ++i) { /* it lies as the result does */
        const int64_t place = at + i * p->dst_pixel + v * BYOC_LANES;
        o[v][i] = BYOC_NAME(binary)(op->kind, o[v][i],
                                    BYOC_NAME(load_as)(operand, place, op->dtype, wide));
      }
    }
  }
  if (p->dst_scale >= 0) {
    BYOC_UNROLL
    for (int i = 0; i < vectors * count; ++i) o[i / count][i % count] *= scaling->unit;
  }
  if (dtype == BYOC_U8 || dtype == BYOC_S8) {
    const int64_t columns = (vectors - 1) * BYOC_LANES + lanes;
    BYOC_UNROLL
    for (int i = 0; i < count; i += 2) {
      const int next = i + 1 < count ? i + 1 : i;
      const BYOC_VEC rows[4] = {o[0][i], o[vectors - 1][i], o[0][next], o[vectors - 1][next]};
      uint8_t* first = (uint8_t*)data[p->result] + at + i * p->dst_pixel;
      BYOC_NAME(store_panels)(first, first + (next - i) * p->dst_pixel,
                              BYOC_NAME(narrow)(rows, scaling->zero, dtype == BYOC_S8), columns);
    }
    return;
  }
  BYOC_UNROLL
  for (int v = 0; v < vectors; ++v) {
    BYOC_UNROLL
    for (int i = 0; i < count; ++i) {
      if (p->dst_zero >= 0) o[v][i] = BYOC_NAME(round)(o[v][i]) + scaling->shift;
      BYOC_NAME(store_as)(data[p->result], at + i * p->dst_pixel + v * BYOC_LANES, dtype, o[v][i],
                          v + 1 < vectors ? BYOC_LANES : lanes);
    }
  }
}

/* Sums of `rows` pixels, BYOC_PANEL apart, of which the first `columns` count: to position `offset`
   of the result on, which is in `column`. */
BYOC_NO_INLINE void BYOC_NAME(integer_finish)(const byoc_integer_params* p, int32_t* sums,
                                              const int32_t* row_sums, int64_t offset, int64_t rows,
                                              int64_t column, int64_t columns, void* const* data) {
  const int is_real = p->dst_dtype != BYOC_S32 || p->bias >= 0 || p->post_ops > 0 ||
                      p->src_scale >= 0 || p->weights_scale >= 0 || p->dst_scale >= 0;
  if (p->weights_zero >= 0) {
    const int32_t* zeros = (const int32_t*)data[p->weights_zero];
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < columns; ++n) {
        const uint32_t zero = (uint32_t)zeros[p->zeros == 1 ? 0 : column + n];
        sums[m * BYOC_PANEL + n] =
            (int32_t)((uint32_t)sums[m * BYOC_PANEL + n] - zero * (uint32_t)row_sums[m]);
      }
    }
  }
  if (!is_real) {
    for (int64_t m = 0; m < rows; ++m) {
      memcpy((int32_t*)data[p->result] + offset + m * p->dst_pixel, sums + m * BYOC_PANEL,
             (size_t)columns * 4);
    }
    return;
  }
  const float* scales = p->weights_scale < 0 ? NULL : (const float*)data[p->weights_scale];
  const int32_t dst_zero = byoc_integer_zero(data, p->dst_zero);
  const int vectors = columns > BYOC_LANES ? 2 : 1;
  const int lanes = (int)(columns - (vectors - 1) * BYOC_LANES);
  BYOC_NAME(integer_scaling) scaling;
  scaling.unit = BYOC_NAME(set)(1.f / byoc_integer_scale(data, p->dst_scale));
  scaling.shift = BYOC_NAME(set)((float)dst_zero);
  scaling.zero = BYOC_OP(set1_epi16)((int16_t)dst_zero);
  for (int v = 0; v < vectors; ++v) {
    const int64_t first = column + v * BYOC_LANES;
    const int wide = v + 1 < vectors ? BYOC_LANES : lanes;
    scaling.scale[v] = BYOC_NAME(set)(byoc_integer_scale(data, p->src_scale));
    scaling.bias[v] = BYOC_NAME(set)(0.f);
    if (scales != NULL) {
      scaling.scale[v] *=
          p->scales == 1 ? BYOC_NAME(set)(scales[0]) : BYOC_NAME(load_some)(scales + first, wide);
    }
    if (p->bias >= 0) {
      scaling.bias[v] = BYOC_NAME(load_some)((const float*)data[p->bias] + first, wide);
    }
  }
#define BYOC_FINISH(count, vectors, lanes, dtype)                                          \
  BYOC_NAME(finish_rows)(p, count, vectors, lanes, dtype, sums + m * BYOC_PANEL, &scaling, \
                         offset + m * p->dst_pixel, column, data)
  int64_t m = 0;
  if (columns == BYOC_PANEL && p->dst_dtype == BYOC_U8) {
    for (; m + 4 <= rows; m += 4) BYOC_FINISH(4, 2, BYOC_LANES, BYOC_U8);
  } else if (columns == BYOC_PANEL) {
    for (; m + 4 <= rows; m += 4) BYOC_FINISH(4, 2, BYOC_LANES, p->dst_dtype);
  } else if (columns == BYOC_LANES) {
    for (; m + 4 <= rows; m += 4) BYOC_FINISH(4, 1, BYOC_LANES, p->dst_dtype);
  }
  for (; m < rows; ++m) BYOC_FINISH(1, vectors, lanes, p->dst_dtype);
#undef BYOC_FINISH
}
