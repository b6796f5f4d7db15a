/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_direct.h, and the memory that it takes. */
#ifndef BYOC_DIRECT_PLAN_H_
#define BYOC_DIRECT_PLAN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. Channels and outputs are those of
   one group; dilations of 1 leave no holes. */
typedef struct __attribute__((may_alias)) byoc_direct_params {
  int64_t images, groups;
  int64_t channels, height, width;
  int64_t outputs, out_height, out_width;
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, dilation_y, dilation_x;
  int64_t pad_top, pad_left;
  byoc_strides src, dst;
  int64_t shuffle; /* channels of the source are read as oneDNN's shuffle of this group size would
                      order them; 1: as they are */
  int64_t has_bias, post_ops;
  int64_t threads; /* that there is scratch memory for */
} byoc_direct_params;

enum {
  BYOC_DIRECT_LANES = BYOC_AVX2_LANES,
  BYOC_DIRECT_ALONE = 1 << 16 /* multiplications that are not worth waking another thread */
};

/* Vectors of the panel of weights that begins at an output of a group: 3, or 2 where that leaves no
   single vector for the last panel. */
static inline int64_t byoc_direct_vectors(const byoc_direct_params* p, int64_t output) {
  const int64_t left = (p->outputs - output + BYOC_DIRECT_LANES - 1) / BYOC_DIRECT_LANES;
  return left == 3 || left > 4 ? 3 : 2;
}

/* Weights of one output; outputs of a group, filled up to whole panels. */
static inline int64_t byoc_direct_taps(const byoc_direct_params* p) {
  return p->channels * p->kernel_height * p->kernel_width;
}
static inline int64_t byoc_direct_filled(const byoc_direct_params* p) {
  return byoc_max(byoc_round_up(p->outputs, BYOC_DIRECT_LANES), 2 * BYOC_DIRECT_LANES);
}

static inline size_t byoc_direct_packed_bytes(const byoc_direct_params* p) {
  return (size_t)(p->groups * byoc_direct_taps(p) * byoc_direct_filled(p)) * 4;
}

/* What a thread keeps: where each tap of each group lies, and the biases, filled up with zeros. */
static inline int64_t byoc_direct_scratch_of_thread(const byoc_direct_params* p) {
  return p->groups * (byoc_direct_taps(p) * 8 + byoc_direct_filled(p) * 4);
}
static inline size_t byoc_direct_scratch_bytes(const byoc_direct_params* p) {
  return (size_t)(p->threads * byoc_direct_scratch_of_thread(p));
}

#endif /* BYOC_DIRECT_PLAN_H_ */
