/* SPDX-License-Identifier: Apache-2.0
   Layer normalisation of rows of float32 or bytes, the same with a mean that counts as zero (RMS),
   softmax of either, means of float32: a row is converted to float32, normalised there, and
   quantised if its result is bytes, without leaving the first-level cache. The mean of equal
   numbers is exactly their value, and the variance is that of the distances from the mean. */
#ifndef BYOC_NORMALIZE_H_
#define BYOC_NORMALIZE_H_

#include "byoc_post_ops.h"

/* What is made of each row; the mean is one number. */
typedef enum byoc_row_form { BYOC_LAYER, BYOC_RMS, BYOC_SOFTMAX, BYOC_MEAN } byoc_row_form;

/* Rows follow each other. Numbers that are given when it runs stand in the data: their positions
   there, -1 for none. */
typedef struct __attribute__((may_alias)) byoc_normalize_params {
  int64_t isa;  /* byoc_isa */
  int64_t form; /* byoc_row_form */
  int64_t rows, columns;
  int64_t src_dtype, dst_dtype; /* BYOC_S8, BYOC_U8, BYOC_F32: the mean of F32 only */
  int64_t src_scale, dst_scale, dst_zero, gamma, beta, result;
  double epsilon, factor, addend; /* BYOC_MEAN: factor mean + addend */
  int64_t threads;                /* that there is scratch memory for */
} byoc_normalize_params;

/* The numbers that a thread keeps: a row, filled up to what is quantised at once. */
static inline int64_t byoc_normalize_numbers(const byoc_normalize_params* p) {
  return byoc_round_up(p->columns, 2 * byoc_panel(p->isa));
}

#define BYOC_BODY "byoc_normalize.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, what the parameters name, result. */
BYOC_KERNEL_FOR_ISA(normalize, byoc_normalize_params, p->isa, p->threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* The numbers of a row become their shares; returns the sum of these: NaN where the row has a NaN,
   or an infinity as its largest number. */
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

/* Softmax of `rows` rows of floats that are no longer than a vector, as many rows at once as it has
   lanes. A NaN, or an infinity as the largest number, makes all of its row NaN. */
BYOC_INLINE void BYOC_NAME(softmax_rows)(const float* from, int64_t rows, int64_t columns,
                                         float* to) {
  BYOC_VEC numbers[BYOC_LANES], top = BYOC_NAME(set)(-INFINITY), total = BYOC_NAME(set)(0.f);
  float* lanes = (float*)numbers;
  for (int64_t k = 0; k < columns; ++k) {
    for (int64_t i = 0; i < rows; ++i) lanes[k * BYOC_LANES + i] = from[i * columns + k];
    for (int64_t i = rows; i < BYOC_LANES; ++i) lanes[k * BYOC_LANES + i] = 0;
    top = BYOC_NAME(max)(top, numbers[k]);
  }
  for (int64_t k = 0; k < columns; ++k) {
    numbers[k] = BYOC_NAME(exp)(BYOC_NAME(max)(BYOC_NAME(set)(-88.f), numbers[k] - top));
    total += numbers[k];
  }
  for (int64_t k = 0; k < columns; ++k) {
    numbers[k] /= total;
    for (int64_t i = 0; i < rows; ++i) to[i * columns + k] = lanes[k * BYOC_LANES + i];
  }
}

/* The mean of a row, which is added in double. That of equal numbers is then exact: a number has 24
   bits, and the sum of up to 2^29 of it has 53. */
BYOC_INLINE double BYOC_NAME(row_mean)(const float* row, int64_t columns) {
  BYOC_WIDE even = BYOC_NAME(set_wide)(0), odd = even;
  double lanes[BYOC_LANES / 2], rest = 0;
  int64_t k = 0;
  for (; k + BYOC_LANES <= columns; k += BYOC_LANES) {
    const BYOC_VEC x = BYOC_NAME(load)(row + k);
    even += BYOC_NAME(widen)(x, 0);
    odd += BYOC_NAME(widen)(x, 1);
  }
  for (; k < columns; ++k) rest += row[k];
  even += odd;
  memcpy(lanes, &even, sizeof(lanes));
  BYOC_UNROLL
  for (int some = BYOC_LANES / 4; some > 0; some /= 2) {
    BYOC_UNROLL
    for (int i = 0; i < some; ++i) lanes[i] += lanes[i + some];
  }
  return (lanes[0] + rest) / (double)columns;
}

/* Numbers behind the last whole vector of a row; `fill` behind its end. */
BYOC_INLINE BYOC_VEC BYOC_NAME(row_end)(const float* from, int64_t count, float fill) {
  float lanes[BYOC_LANES];
  for (int i = 0; i < BYOC_LANES; ++i) lanes[i] = i < count ? from[i] : fill;
  return BYOC_NAME(load)(lanes);
}

/* The sum of the distances of a row from a number, which become `to` if that is not NULL, and of
   their squares. Those of a block are few, so float32 loses nothing that counts. */
BYOC_INLINE void BYOC_NAME(centre_row)(const float* row, int64_t columns, float number, float* to,
                                       double* sum, double* squares) {
  enum { kBlock = 4096 };
  const BYOC_VEC centre = BYOC_NAME(set)(number), zero = BYOC_NAME(set)(0.f);
  *sum = *squares = 0;
  for (int64_t k = 0; k < columns;) {
    const int64_t last = byoc_min(columns, k + kBlock);
    BYOC_VEC even = zero, odd = zero, even_squares = zero, odd_squares = zero;
    for (; k + BYOC_PANEL <= last; k += BYOC_PANEL) {
      const BYOC_VEC x = BYOC_NAME(load)(row + k) - centre;
      const BYOC_VEC y = BYOC_NAME(load)(row + k + BYOC_LANES) - centre;
      even += x;
      odd += y;
      if (to == NULL) continue;
      BYOC_NAME(store)(to + k, x);
      BYOC_NAME(store)(to + k + BYOC_LANES, y);
      even_squares += x * x;
      odd_squares += y * y;
    }
    for (; k < last; k += BYOC_LANES) {
      const int64_t count = last - k;
      const BYOC_VEC x = (count < BYOC_LANES ? BYOC_NAME(row_end)(row + k, count, number)
                                             : BYOC_NAME(load)(row + k)) -
                         centre;
      even += x;
      if (to == NULL) continue;
      BYOC_NAME(store)(to + k, x);
      even_squares += x * x;
    }
    k = last;
    *sum += (double)BYOC_NAME(sum_lanes)(even + odd);
    if (to != NULL) *squares += (double)BYOC_NAME(sum_lanes)(even_squares + odd_squares);
  }
}

/* Without the C library, which emitted source may not be linked with. */
BYOC_INLINE double BYOC_NAME(root)(double x) {
  const __m128d v = _mm_set_sd(x);
  return _mm_cvtsd_f64(_mm_sqrt_sd(v, v));
}

/* A row less its mean, divided by its standard deviation, times gamma plus beta. The mean is looked
   for from the first number on, and again from there: so that of equal numbers is exact, and a
   first number far from the others does no harm. BYOC_RMS takes zero for the mean. */
BYOC_INLINE void BYOC_NAME(layer_row)(const byoc_normalize_params* p, float scale,
                                      const float* gamma, const float* beta, const float* row,
                                      float* numbers, float* to) {
  const int64_t columns = p->columns, whole = columns / BYOC_LANES * BYOC_LANES;
  const int has_mean = p->form == BYOC_LAYER;
  double sum, squares;
  float mean = 0;
  if (has_mean) {
    BYOC_NAME(centre_row)(row, columns, row[0], NULL, &sum, &squares);
    mean = (float)(row[0] + sum / (double)columns);
    if (!isfinite(mean)) mean = (float)BYOC_NAME(row_mean)(row, columns); /* huge numbers */
  }
  BYOC_NAME(centre_row)(row, columns, mean, numbers, &sum, &squares);
  const double rest = has_mean ? sum / (double)columns : 0;
  const double spread = squares / (double)columns - rest * rest;
  const double variance = spread < 0 ? 0 : spread;
  const double factor = scale / BYOC_NAME(root)(variance * scale * scale + p->epsilon);
  const BYOC_VEC by = BYOC_NAME(set)((float)factor), less = BYOC_NAME(set)((float)(rest * factor));
  for (int64_t k = 0; k < whole; k += BYOC_LANES) {
    BYOC_VEC x = BYOC_NAME(load)(numbers + k) * by - less;
    if (gamma != NULL) x *= BYOC_NAME(load)(gamma + k);
    if (beta != NULL) x += BYOC_NAME(load)(beta + k);
    BYOC_NAME(store)(to + k, x);
  }
  if (whole < columns) {
    const int lanes = (int)(columns - whole);
    BYOC_VEC x = BYOC_NAME(load)(numbers + whole) * by - less;
    if (gamma != NULL) x *= BYOC_NAME(load_some)(gamma + whole, lanes);
    if (beta != NULL) x += BYOC_NAME(load_some)(beta + whole, lanes);
    BYOC_NAME(store_some)(to + whole, x, lanes);
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

BYOC_NO_INLINE void BYOC_NAME(normalize_part)(const byoc_normalize_params* p, void* const* data,
                                              void* scratch, int64_t part, int64_t parts) {
  const int64_t first = p->rows * part / parts, last = p->rows * (part + 1) / parts;
  float* numbers = (float*)scratch + part * byoc_normalize_numbers(p);
  const int64_t end = byoc_round_up(p->columns, BYOC_LANES);
  const float scale = p->src_scale < 0 ? 1.f : *(const float*)data[p->src_scale];
  const float unit = p->dst_scale < 0 ? 1.f : 1.f / *(const float*)data[p->dst_scale];
  const int32_t zero = p->dst_zero < 0 ? 0 : *(const int32_t*)data[p->dst_zero];
  const int is_softmax = p->form == BYOC_SOFTMAX, is_float = p->dst_dtype == BYOC_F32;
  const float* gamma = p->gamma < 0 ? NULL : (const float*)data[p->gamma];
  const float* beta = p->beta < 0 ? NULL : (const float*)data[p->beta];
  if (p->form == BYOC_MEAN) {
    for (int64_t row = first; row < last; ++row) {
      const float* from = (const float*)data[0] + row * p->columns;
      const double mean = BYOC_NAME(row_mean)(from, p->columns);
      ((float*)data[p->result])[row] = (float)(p->factor * mean + p->addend);
    }
    return;
  }
  for (int64_t row = first, rows; is_softmax && is_float && row < last; row += rows) {
    rows = byoc_min(BYOC_LANES, last - row);
    BYOC_NAME(softmax_rows)
    ((const float*)data[0] + row * p->columns, rows, p->columns,
     (float*)data[p->result] + row * p->columns);
  }
  if (is_softmax && is_float) return;
  for (int64_t k = end; k < byoc_normalize_numbers(p); ++k) numbers[k] = 0;
  for (int64_t row = first; row < last; ++row) {
    const float* from = numbers;
    float share = unit;
    if (p->src_dtype == BYOC_F32) {
      from = (const float*)data[0] + row * p->columns;
    } else {
      BYOC_NAME(load_row)(data[0], row * p->columns, p->src_dtype, p->columns,
                          is_softmax ? scale : 1.f, numbers);
      for (int64_t k = p->columns; k < end; ++k) numbers[k] = is_softmax ? -INFINITY : 0.f;
    }
    if (is_softmax) {
      share = unit / BYOC_NAME(softmax_row)(end, numbers);
    } else {
      float* to = is_float ? (float*)data[p->result] + row * p->columns : numbers;
      BYOC_NAME(layer_row)(p, scale, gamma, beta, from, numbers, to);
    }
    if (is_float) continue;
    uint8_t* to = (uint8_t*)data[p->result] + row * p->columns;
    BYOC_NAME(store_row)(numbers, p->columns, share, zero, p->dst_dtype == BYOC_S8, to);
  }
}

#endif /* BYOC_NORMALIZE_H_ */
