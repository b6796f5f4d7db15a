/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_normalize.h that is compiled once per instruction set; no include guard. */

#include "byoc_bytes_body.h"

BYOC_INLINE float BYOC_NAME(sum_lanes)(BYOC_VEC v) {
  float lanes[BYOC_LANES], sum = 0;
  BYOC_NAME(store)(lanes, v);
  for (int i = 0; i < BYOC_LANES; ++i) sum += lanes[i];
  return sum;
}

/* A row of bytes as numbers, times `scale`; behind them `rest`, up to a whole number of vectors. */
BYOC_INLINE void BYOC_NAME(load_row)(const void* src, int64_t at, int64_t dtype, int64_t columns,
                                     int64_t end, float scale, float rest, float* numbers) {
  int64_t k = 0;
  for (; k + BYOC_LANES <= columns; k += BYOC_LANES) {
    BYOC_NAME(store)(numbers + k, BYOC_NAME(load_as)(src, at + k, dtype, BYOC_LANES) * scale);
  }
  if (k < columns) {
    const int lanes = (int)(columns - k);
    BYOC_NAME(store)(numbers + k, BYOC_NAME(load_as)(src, at + k, dtype, lanes) * scale);
  }
  for (k = columns; k < end; ++k) numbers[k] = rest;
}

/* The numbers of a row become their shares; returns the sum of these. */
BYOC_INLINE float BYOC_NAME(softmax_row)(int64_t end, float* numbers) {
  const BYOC_VEC lowest = BYOC_NAME(set)(-88.f);
  BYOC_VEC top = BYOC_NAME(set)(-INFINITY), total = BYOC_NAME(set)(0.f);
  float lanes[BYOC_LANES], most;
  for (int64_t k = 0; k < end; k += BYOC_LANES) {
    top = BYOC_NAME(max)(top, BYOC_NAME(load)(numbers + k));
  }
  BYOC_NAME(store)(lanes, top);
  most = lanes[0];
  for (int i = 1; i < BYOC_LANES; ++i) most = lanes[i] > most ? lanes[i] : most;
  for (int64_t k = 0; k < end; k += BYOC_LANES) {
    const BYOC_VEC x = BYOC_NAME(load)(numbers + k) - BYOC_NAME(set)(most);
    const BYOC_VEC e = BYOC_NAME(exp)(BYOC_NAME(max)(lowest, x));
    BYOC_NAME(store)(numbers + k, e);
    total += e;
  }
  return BYOC_NAME(sum_lanes)(total);
}

/* The numbers of a row less their mean, divided by their standard deviation, times gamma plus beta.
 */
BYOC_INLINE void BYOC_NAME(layer_row)(const byoc_normalize_params* p, float scale,
                                      const float* gamma, const float* beta, int64_t end,
                                      float* numbers) {
  BYOC_VEC total = BYOC_NAME(set)(0.f), squares = total;
  for (int64_t k = 0; k < end; k += BYOC_LANES) total += BYOC_NAME(load)(numbers + k);
  const float mean = BYOC_NAME(sum_lanes)(total) / (float)p->columns;
  for (int64_t k = p->columns; k < end; ++k) numbers[k] = mean;
  for (int64_t k = 0; k < end; k += BYOC_LANES) {
    const BYOC_VEC x = BYOC_NAME(load)(numbers + k) - BYOC_NAME(set)(mean);
    BYOC_NAME(store)(numbers + k, x);
    squares += x * x;
  }
  const double variance = (double)BYOC_NAME(sum_lanes)(squares) / (double)p->columns;
  const float factor = (float)(scale / sqrt(variance * scale * scale + p->epsilon));
  for (int64_t k = 0; k < p->columns; k += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, p->columns - k);
    BYOC_VEC x = BYOC_NAME(load)(numbers + k) * factor;
    if (gamma != NULL) x *= BYOC_NAME(load_some)(gamma + k, lanes);
    if (beta != NULL) x += BYOC_NAME(load_some)(beta + k, lanes);
    BYOC_NAME(store)(numbers + k, x);
  }
}

/* The numbers of a row times `unit`, rounded, plus `zero`, saturated. */
BYOC_INLINE void BYOC_NAME(store_row)(const float* numbers, int64_t columns, float unit,
                                      int32_t zero, const int is_signed, uint8_t* to) {
  const BYOC_INTS zeros = BYOC_OP(set1_epi16)((int16_t)zero);
  for (int64_t k = 0; k < columns; k += 2 * BYOC_PANEL) {
    BYOC_VEC o[4];
    BYOC_UNROLL
    for (int i = 0; i < 4; ++i) o[i] = BYOC_NAME(load)(numbers + k + i * BYOC_LANES) * unit;
    const BYOC_INTS bytes = BYOC_NAME(narrow)(o, zeros, is_signed);
    if (columns - k >= 2 * BYOC_PANEL) {
      BYOC_NAME(store_ints)(to + k, bytes);
    } else {
      uint8_t some[2 * BYOC_PANEL];
      BYOC_NAME(store_ints)(some, bytes);
      memcpy(to + k, some, (size_t)(columns - k));
    }
  }
}

BYOC_NO_INLINE void BYOC_NAME(normalize_rows)(const byoc_normalize_params* p, int64_t first,
                                              int64_t last, void* const* data, float* numbers) {
  const int64_t end = byoc_round_up(p->columns, BYOC_LANES);
  const float scale = p->src_scale < 0 ? 1.f : *(const float*)data[p->src_scale];
  const float unit = p->dst_scale < 0 ? 1.f : 1.f / *(const float*)data[p->dst_scale];
  const int32_t zero = p->dst_zero < 0 ? 0 : *(const int32_t*)data[p->dst_zero];
  const float* gamma = p->gamma < 0 ? NULL : (const float*)data[p->gamma];
  const float* beta = p->beta < 0 ? NULL : (const float*)data[p->beta];
  for (int64_t k = end; k < byoc_normalize_numbers(p); ++k) numbers[k] = 0;
  for (int64_t row = first; row < last; ++row) {
    float share = unit;
    BYOC_NAME(load_row)(data[0], row * p->columns, p->src_dtype, p->columns, end,
                        p->is_softmax ? scale : 1.f, p->is_softmax ? -INFINITY : 0.f, numbers);
    if (p->is_softmax) {
      share = unit / BYOC_NAME(softmax_row)(end, numbers);
    } else {
      BYOC_NAME(layer_row)(p, scale, gamma, beta, end, numbers);
    }
    uint8_t* to = (uint8_t*)data[p->result] + row * p->columns;
    BYOC_NAME(store_row)(numbers, p->columns, share, zero, p->dst_dtype == BYOC_S8, to);
  }
}

#include "byoc_vector_end.h"
