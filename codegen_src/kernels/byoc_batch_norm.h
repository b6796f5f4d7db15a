/* SPDX-License-Identifier: Apache-2.0
   Batch normalisation with given statistics, float32, channels last, and a relu: of one source, or
   of several that are read as if they were joined along their channels. And the packed product of
   what it makes, as in a convolution 1x1 behind it: a thread normalises a block of pixels, which
   then lies in its cache, and multiplies it. So the result of the normalisation is neither written
   to memory nor read from there. */
#ifndef BYOC_BATCH_NORM_H_
#define BYOC_BATCH_NORM_H_

#include "byoc_product.h"

#define BYOC_BODY "byoc_batch_norm.h"
#include "byoc_each_isa.h"

/* The kernel. data: the parts, gamma, beta, mean, variance, result. */
BYOC_KERNEL_FOR_ISA(batch_norm, byoc_batch_norm_params, p->isa, p->threads)

/* The kernel. data: the parts, gamma, beta, mean, variance (as of byoc_batch_norm), packed weights,
   bias if there is one, the operands of the post-operations, result (as of byoc_product, which
   finds the variance in the place of its source). */
BYOC_KERNEL_FOR_ISA(batch_norm_product, byoc_convolution, p->isa, p->threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* Some channels of a pixel. The mean is subtracted first: where it is large, the error stays small.
   `low`: the least result, -infinity without a relu. */
BYOC_INLINE BYOC_VEC BYOC_NAME(batch_norm)(const float* from, const float* mean, const float* scale,
                                           const float* beta, BYOC_VEC low, int lanes) {
  const BYOC_VEC x = BYOC_NAME(load_some)(from, lanes) - BYOC_NAME(load_some)(mean, lanes);
  const BYOC_VEC y = x * BYOC_NAME(load_some)(scale, lanes) + BYOC_NAME(load_some)(beta, lanes);
  return BYOC_NAME(max)(low, y);
}

BYOC_INLINE void BYOC_NAME(batch_norm_channels)(const float* from, const float* mean,
                                                const float* scale, const float* beta, BYOC_VEC low,
                                                int64_t channels, float* to) {
  int64_t k = 0;
  for (; k + BYOC_LANES <= channels; k += BYOC_LANES) {
    BYOC_NAME(store)(
        to + k, BYOC_NAME(batch_norm)(from + k, mean + k, scale + k, beta + k, low, BYOC_LANES));
  }
  if (k < channels) {
    const int lanes = (int)(channels - k);
    BYOC_NAME(store_some)(
        to + k, BYOC_NAME(batch_norm)(from + k, mean + k, scale + k, beta + k, low, lanes), lanes);
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
  const BYOC_VEC low = BYOC_NAME(set)(p->has_relu ? 0.f : -__builtin_inff());
  for (int64_t part = 0, at = 0; part < p->parts; at += channels[part++]) {
    BYOC_NAME(batch_norm_channels)(data[part] + pixel * channels[part], mean + at, scale + at,
                                   beta + at, low, channels[part], to + at);
  }
}

BYOC_NO_INLINE void BYOC_NAME(batch_norm_part)(const byoc_batch_norm_params* p, void* const* data,
                                               void* scratch, int64_t part, int64_t parts) {
  const float* const* sources = (const float* const*)data;
  float* scale = (float*)scratch + part * byoc_batch_norm_scales(p->channels);
  float* to = (float*)data[p->parts + 4];
  BYOC_NAME(batch_norm_scale)(p, sources + p->parts, scale);
  for (int64_t pixel = p->pixels * part / parts; pixel < p->pixels * (part + 1) / parts; ++pixel) {
    BYOC_NAME(batch_norm_pixel)(p, pixel, sources, scale, to + pixel * p->channels);
  }
}

/* What a product reads: the parameters, the parts and statistics, and the scales. */
typedef struct BYOC_NAME(batch_norm_source) {
  const byoc_batch_norm_params* norm;
  const float* const* data;
  const float* scale;
} BYOC_NAME(batch_norm_source);

BYOC_INLINE const float* BYOC_NAME(batch_norm_rows)(const byoc_convolution* p, const void* source,
                                                    int64_t row, int64_t rows, float* room) {
  const BYOC_NAME(batch_norm_source)* s = (const BYOC_NAME(batch_norm_source)*)source;
  for (int64_t i = 0; i < rows; ++i) {
    BYOC_NAME(batch_norm_pixel)(s->norm, byoc_product_place(p, row + i), s->data, s->scale,
                                room + i * byoc_product_copied_row(p));
  }
  return room;
}

/* The work of one thread of a team that multiplies. */
BYOC_NO_INLINE void BYOC_NAME(batch_norm_product_part)(const byoc_convolution* p, void* const* data,
                                                       void* scratch, int64_t part, int64_t parts) {
  const byoc_batch_norm_params* norm = byoc_batch_norm_of(p);
  float* sums = (float*)scratch + part * byoc_batch_norm_product_floats(p);
  float* scale = sums + byoc_product_sums(p);
  const BYOC_NAME(batch_norm_source) source = {norm, (const float* const*)data, scale};
  BYOC_NAME(batch_norm_scale)(norm, source.data + norm->parts, scale);
  BYOC_NAME(product_blocks)(p, data + norm->parts + 3, BYOC_NAME(batch_norm_rows), &source,
                            byoc_product_copied_row(p), sums,
                            scale + byoc_batch_norm_scales(p->channels), part, parts);
}

#endif /* BYOC_BATCH_NORM_H_ */
