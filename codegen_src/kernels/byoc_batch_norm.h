/* SPDX-License-Identifier: Apache-2.0
   Batch normalisation with given statistics, float32, channels last, and a relu: of one source, or
   of several that are read as if they were joined along their channels. And the packed product of
   what it makes, as in a convolution 1x1 behind it: a thread normalises a block of pixels, which
   then lies in its cache, and multiplies it. So the result of the normalisation is neither written
   to memory nor read from there.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_BATCH_NORM_H_
#define BYOC_BATCH_NORM_H_

#include "byoc_product.h"

#define BYOC_BODY "byoc_batch_norm.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_batch_norm_on_thread(const int64_t* params, void* const* data, void* scratch,
                                            int64_t part, int64_t parts) {
  const byoc_batch_norm_params* p = (const byoc_batch_norm_params*)params;
  float* scale = (float*)scratch + part * byoc_batch_norm_scales(p->channels);
  BYOC_FOR_ISA(p->isa, batch_norm_pixels,
               (p, p->pixels * part / parts, p->pixels * (part + 1) / parts,
                (const float* const*)data, (float*)data[p->parts + 4], scale));
  return BYOC_OK;
}

/* The kernel. data: the parts, gamma, beta, mean, variance, result. */
BYOC_FUNCTION int byoc_batch_norm(const int64_t* params, void* const* data, void* scratch,
                                  int threads, char* error) {
  const byoc_batch_norm_params* p = (const byoc_batch_norm_params*)params;
  const int alone = p->pixels * p->channels < (int64_t)BYOC_BATCH_NORM_ALONE;
  (void)error;
  return byoc_on_team(byoc_batch_norm_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

BYOC_FUNCTION int byoc_batch_norm_product_on_thread(const int64_t* params, void* const* data,
                                                    void* scratch, int64_t part, int64_t parts) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  float* own = (float*)scratch + part * byoc_batch_norm_product_floats(p);
  BYOC_FOR_ISA(p->isa, batch_norm_product_part, (p, part, parts, data, own));
  return BYOC_OK;
}

/* The kernel. data: the parts, gamma, beta, mean, variance (as of byoc_batch_norm), packed weights,
   bias if there is one, the operands of the post-operations, result (as of byoc_product, which
   finds the variance in the place of its source). */
BYOC_FUNCTION int byoc_batch_norm_product(const int64_t* params, void* const* data, void* scratch,
                                          int threads, char* error) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  const int alone = p->rows * p->columns * p->depth < BYOC_PRODUCT_ALONE;
  (void)error;
  return byoc_on_team(byoc_batch_norm_product_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* Some channels of a pixel. The mean is subtracted first: where it is large, the error stays small.
 */
BYOC_INLINE BYOC_VEC BYOC_NAME(batch_norm)(const float* from, const float* mean, const float* scale,
                                           const float* beta, const int has_relu, int lanes) {
  const BYOC_VEC x = BYOC_NAME(load_some)(from, lanes) - BYOC_NAME(load_some)(mean, lanes);
  const BYOC_VEC y = x * BYOC_NAME(load_some)(scale, lanes) + BYOC_NAME(load_some)(beta, lanes);
  return has_relu ? BYOC_NAME(max)(BYOC_NAME(set)(0.f), y) : y;
}

BYOC_INLINE void BYOC_NAME(batch_norm_part)(const float* from, const float* mean,
                                            const float* scale, const float* beta,
                                            const int has_relu, int64_t channels, float* to) {
  int64_t k = 0;
  for (; k + BYOC_LANES <= channels; k += BYOC_LANES) {
    BYOC_NAME(store)(to + k, BYOC_NAME(batch_norm)(from + k, mean + k, scale + k, beta + k,
                                                   has_relu, BYOC_LANES));
  }
  if (k < channels) {
    const int lanes = (int)(channels - k);
    BYOC_NAME(store_some)(
        to + k, BYOC_NAME(batch_norm)(from + k, mean + k, scale + k, beta + k, has_relu, lanes),
        lanes);
  }
}

/* What each channel is multiplied by. */
BYOC_INLINE void BYOC_NAME(batch_norm_scale)(const byoc_batch_norm_params* p,
                                             const float* const* statistics, float* scale) {
  const float *gamma = statistics[0], *variances = statistics[3];
  for (int64_t k = 0; k < p->channels; k += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, p->channels - k);
    const BYOC_VEC variance = BYOC_NAME(load_some)(variances + k, lanes);
    const BYOC_VEC deviation = BYOC_NAME(sqrt)(variance + (float)p->epsilon);
    BYOC_NAME(store)(scale + k, BYOC_NAME(load_some)(gamma + k, lanes) / deviation);
  }
}

/* One pixel of all parts. data: the parts and the statistics. */
BYOC_INLINE void BYOC_NAME(batch_norm_pixel)(const byoc_batch_norm_params* p, int64_t pixel,
                                             const float* const* data, const float* scale,
                                             float* to) {
  const int64_t* channels = (const int64_t*)(p + 1);
  const float *beta = data[p->parts + 1], *mean = data[p->parts + 2];
  for (int64_t part = 0, at = 0; part < p->parts; at += channels[part++]) {
    const float* from = data[part] + pixel * channels[part];
    if (p->has_relu) {
      BYOC_NAME(batch_norm_part)(from, mean + at, scale + at, beta + at, 1, channels[part],
                                 to + at);
    } else {
      BYOC_NAME(batch_norm_part)(from, mean + at, scale + at, beta + at, 0, channels[part],
                                 to + at);
    }
  }
}

BYOC_NO_INLINE void BYOC_NAME(batch_norm_pixels)(const byoc_batch_norm_params* p, int64_t first,
                                                 int64_t last, const float* const* data, float* to,
                                                 float* scale) {
  BYOC_NAME(batch_norm_scale)(p, data + p->parts, scale);
  for (int64_t pixel = first; pixel < last; ++pixel) {
    BYOC_NAME(batch_norm_pixel)(p, pixel, data, scale, to + pixel * p->channels);
  }
}

/* The work of one thread of a team that multiplies. */
BYOC_NO_INLINE void BYOC_NAME(batch_norm_product_part)(const byoc_product_params* p, int64_t thread,
                                                       int64_t team, void* const* data,
                                                       float* scratch) {
  const byoc_batch_norm_params* norm = byoc_batch_norm_of(p);
  const float* const* parts = (const float* const*)data;
  void* const* of_product = data + norm->parts + 3;
  const byoc_share share =
      byoc_divide(p->rows, BYOC_PAIR_ROWS, p->columns, BYOC_PANEL, thread, team);
  const int64_t rows = share.last_row - share.first_row;
  const byoc_end end = byoc_end_of((const byoc_post_op*)(p + 1), p->post_ops);
  float* scale = scratch + byoc_product_sums(p);
  float* normalised = scale + byoc_batch_norm_scales(p->depth);
  const int64_t step = byoc_product_copied_row(p);
  const int64_t blocks = (rows + BYOC_PRODUCT_ROWS - 1) / BYOC_PRODUCT_ROWS;
  BYOC_NAME(batch_norm_scale)(norm, parts + norm->parts, scale);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + rows * block / blocks;
    const int64_t count = share.first_row + rows * (block + 1) / blocks - first;
    for (int64_t i = 0; i < count; ++i) {
      BYOC_NAME(batch_norm_pixel)(norm, byoc_product_place(p, first + i), parts, scale,
                                  normalised + i * step);
    }
    BYOC_NAME(product_panels)(p, &end, &share, normalised, step, first, count, of_product, scratch);
  }
}

#endif /* BYOC_BATCH_NORM_H_ */
