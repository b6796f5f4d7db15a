/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_integer.h: sums become results. */

/* What scales the sums of a panel, and the results. */
typedef struct {
  BYOC_VEC scale[2], bias[2], unit, shift;
  BYOC_INTS zero; /* `shift` in 16 bits */
} BYOC_NAME(integer_scaling);

/* A post-operation on the vectors of finish_rows, o[v * count + i]. */
BYOC_INLINE void BYOC_NAME(finish_post_op)(const byoc_post_op* op, const void* operand,
                                           const int count, const int vectors, int lanes,
                                           int64_t at, int64_t pixel, int64_t column, BYOC_VEC* o) {
  const int all = vectors * count;
  if (operand == NULL || op->form == BYOC_PER_TENSOR) {
    BYOC_NAME(apply)(op, (const float*)operand, 0, 1, all, 1, all, 1, o);
    return;
  }
  if (op->form == BYOC_PER_CHANNEL) {
    for (int v = 0; v < vectors; ++v) {
      BYOC_NAME(apply)(op, (const float*)operand, column + v * BYOC_LANES,
                       v + 1 < vectors ? BYOC_LANES : lanes, count, 1, count, 1, o + v * count);
    }
    return;
  }
  BYOC_VEC b[BYOC_FINISH_VECTORS]; /* it lies as the result does */
#define BYOC_LOAD(dtype)                                                                       \
  BYOC_UNROLL                                                                                  \
  for (int i = 0; i < all; ++i) {                                                              \
    b[i] = BYOC_NAME(load_as)(operand, at + i % count * pixel + i / count * BYOC_LANES, dtype, \
                              i / count + 1 < vectors ? BYOC_LANES : lanes);                   \
  }
  if (op->dtype == BYOC_U8) { /* known to the compiler in the most frequent case */
    BYOC_LOAD(BYOC_U8)
  } else {
    BYOC_LOAD(op->dtype)
  }
#undef BYOC_LOAD
  if (op->kind == BYOC_ADD) {
    for (int i = 0; i < all; ++i) o[i] += b[i];
  } else {
    for (int i = 0; i < all; ++i) o[i] = BYOC_NAME(binary)(op->kind, o[i], b[i]);
  }
}

/* `count` rows of `vectors` vectors (the last one of `lanes` numbers) that lie in `column`: scaled,
   with bias and post-operations, and stored from position `at` of the result on. */
BYOC_INLINE void BYOC_NAME(finish_rows)(const byoc_integer_params* p, const int count,
                                        const int vectors, int lanes, const int64_t dtype,
                                        const int32_t* sums,
                                        const BYOC_NAME(integer_scaling) * scaling, int64_t at,
                                        int64_t column, void* const* data) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  BYOC_VEC o[BYOC_FINISH_VECTORS]; /* vector v of row i: v * count + i */
  BYOC_UNROLL
  for (int v = 0; v < vectors; ++v) {
    BYOC_UNROLL
    for (int i = 0; i < count; ++i) {
      const BYOC_INTS ints = BYOC_NAME(load_ints)(sums + i * BYOC_PANEL + v * BYOC_LANES);
      o[v * count + i] =
          (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, ints) * scaling->scale[v] + scaling->bias[v];
    }
  }
  for (int64_t k = 0; k < p->of.post_ops; ++k) {
    const byoc_post_op* op = &post_ops[k];
    BYOC_NAME(finish_post_op)(op, op->operand < 0 ? NULL : data[op->operand], count, vectors, lanes,
                              at, p->of.dst.pixel, column, o);
  }
  if (p->at.dst_scale >= 0) {
    BYOC_UNROLL
    for (int i = 0; i < vectors * count; ++i) o[i] *= scaling->unit;
  }
  if (dtype == BYOC_U8 || dtype == BYOC_S8) {
    const int64_t columns = (vectors - 1) * BYOC_LANES + lanes;
    BYOC_UNROLL
    for (int i = 0; i < count; i += 2) {
      const int next = i + 1 < count ? i + 1 : i;
      const int last = (vectors - 1) * count;
      const BYOC_VEC rows[4] = {o[i], o[last + i], o[next], o[last + next]};
      uint8_t* first = (uint8_t*)data[p->at.result] + at + i * p->of.dst.pixel;
      BYOC_NAME(store_panels)(first, first + (next - i) * p->of.dst.pixel,
                              BYOC_NAME(narrow)(rows, scaling->zero, dtype == BYOC_S8), columns);
    }
    return;
  }
  BYOC_UNROLL
  for (int v = 0; v < vectors; ++v) {
    BYOC_UNROLL
    for (int i = 0; i < count; ++i) {
      BYOC_VEC x = o[v * count + i];
      if (p->at.dst_zero >= 0) x = BYOC_NAME(round)(x) + scaling->shift;
      BYOC_NAME(store_as)(data[p->at.result], at + i * p->of.dst.pixel + v * BYOC_LANES, dtype, x,
                          v + 1 < vectors ? BYOC_LANES : lanes);
    }
  }
}

/* Sums of `rows` pixels, BYOC_PANEL apart, of which the first `columns` count: to position `offset`
   of the result on, which is in `column`. */
BYOC_NO_INLINE void BYOC_NAME(integer_finish)(const byoc_integer_params* p, int32_t* sums,
                                              const int32_t* row_sums, int64_t offset, int64_t rows,
                                              int64_t column, int64_t columns, void* const* data) {
  const int is_real = p->dst_dtype != BYOC_S32 || p->at.bias >= 0 || p->of.post_ops > 0 ||
                      p->at.src_scale >= 0 || p->at.weights_scale >= 0 || p->at.dst_scale >= 0;
  if (p->at.weights_zero >= 0) {
    const int32_t* zeros = (const int32_t*)data[p->at.weights_zero];
    int32_t of_columns[BYOC_PANEL] = {0};
    for (int64_t n = 0; n < columns; ++n) of_columns[n] = zeros[p->at.zeros == 1 ? 0 : column + n];
    for (int64_t m = 0; m < rows; ++m) {
      const BYOC_INTS row_sum = BYOC_OP(set1_epi32)(row_sums[m]);
      for (int64_t n = 0; n < BYOC_PANEL; n += BYOC_LANES) {
        const BYOC_INTS all = BYOC_OP(mullo_epi32)(BYOC_NAME(load_ints)(of_columns + n), row_sum);
        int32_t* of_row = sums + m * BYOC_PANEL + n;
        BYOC_NAME(store_ints)(of_row, BYOC_OP(sub_epi32)(BYOC_NAME(load_ints)(of_row), all));
      }
    }
  }
  if (!is_real) {
    for (int64_t m = 0; m < rows; ++m) {
      memcpy((int32_t*)data[p->at.result] + offset + m * p->of.dst.pixel, sums + m * BYOC_PANEL,
             (size_t)columns * 4);
    }
    return;
  }
  const float* scales = p->at.weights_scale < 0 ? NULL : (const float*)data[p->at.weights_scale];
  const int32_t dst_zero = byoc_integer_zero(data, p->at.dst_zero);
  const int vectors = columns > BYOC_LANES ? 2 : 1;
  const int lanes = (int)(columns - (vectors - 1) * BYOC_LANES);
  BYOC_NAME(integer_scaling) scaling;
  scaling.unit = BYOC_NAME(set)(1.f / byoc_integer_scale(data, p->at.dst_scale));
  scaling.shift = BYOC_NAME(set)((float)dst_zero);
  scaling.zero = BYOC_OP(set1_epi16)((int16_t)dst_zero);
  for (int v = 0; v < vectors; ++v) {
    const int64_t first = column + v * BYOC_LANES;
    const int wide = v + 1 < vectors ? BYOC_LANES : lanes;
    scaling.scale[v] = BYOC_NAME(set)(byoc_integer_scale(data, p->at.src_scale));
    scaling.bias[v] = BYOC_NAME(set)(0.f);
    if (scales != NULL) {
      scaling.scale[v] *= p->at.scales == 1 ? BYOC_NAME(set)(scales[0])
                                            : BYOC_NAME(load_some)(scales + first, wide);
    }
    if (p->at.bias >= 0) {
      scaling.bias[v] = BYOC_NAME(load_some)((const float*)data[p->at.bias] + first, wide);
    }
  }
#define BYOC_FINISH(count, vectors, lanes, dtype)                                          \
  BYOC_NAME(finish_rows)(p, count, vectors, lanes, dtype, sums + m * BYOC_PANEL, &scaling, \
                         offset + m * p->of.dst.pixel, column, data)
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
