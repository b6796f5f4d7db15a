/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_depthwise.h. */
#ifndef BYOC_DEPTHWISE_PLAN_H_
#define BYOC_DEPTHWISE_PLAN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. A dilation of 1 leaves no holes.
 */
typedef struct __attribute__((may_alias)) byoc_depthwise_params {
  int64_t isa; /* byoc_isa */
  int64_t images, channels;
  int64_t height, width, out_height, out_width;
  int64_t kernel_height, kernel_width; /* a width of 3, 5 or 7 */
  int64_t stride_y, stride_x;          /* 1 or 2 in x */
  int64_t dilation_y;
  int64_t pad_top, pad_left;
  byoc_strides src, dst;
  int64_t has_bias, post_ops;
} byoc_depthwise_params;

enum {
  BYOC_DEPTHWISE_PIXELS = 8,     /* at once */
  BYOC_DEPTHWISE_ALONE = 1 << 15 /* multiplications that are not worth waking another thread */
};

/* Whether there is code for a kernel of this width and stride in x. */
static inline int byoc_depthwise_has(int64_t width, int64_t stride) {
  return (width == 5 || width == 7) && (stride == 1 || stride == 2);
}

/* Vectors of channels, and blocks of pixels in a row of results. */
static inline int64_t byoc_depthwise_vectors(const byoc_depthwise_params* p) {
  return (p->channels + byoc_lanes(p->isa) - 1) / byoc_lanes(p->isa);
}
static inline int64_t byoc_depthwise_blocks(const byoc_depthwise_params* p) {
  return (p->out_width + BYOC_DEPTHWISE_PIXELS - 1) / BYOC_DEPTHWISE_PIXELS;
}

/* Floats from one vector of channels to the next: in channels-last, or in blocks of one each. */
static inline int64_t byoc_depthwise_vector(const byoc_strides* s, int64_t lanes) {
  return s->lanes == lanes ? s->block : lanes;
}

static inline int64_t byoc_depthwise_taps(const byoc_depthwise_params* p) {
  return p->kernel_height * p->kernel_width;
}

static inline size_t byoc_depthwise_packed_bytes(const byoc_depthwise_params* p) {
  return (size_t)(byoc_round_up(p->channels, byoc_lanes(p->isa)) * byoc_depthwise_taps(p)) * 4;
}

#endif /* BYOC_DEPTHWISE_PLAN_H_ */
