/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_batch_norm.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"

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

#include "byoc_vector_end.h"
