/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_groups.h. */
#ifndef BYOC_GROUPS_PLAN_H_
#define BYOC_GROUPS_PLAN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. Channels and outputs are those of
   one group; dilations of 1 leave no holes. Images have their channels last, or in blocks of a
   vector each if no vector of the kernel begins inside of a block. */
typedef struct __attribute__((may_alias)) byoc_groups_params {
  int64_t isa; /* byoc_isa */
  int64_t images, groups;
  int64_t channels, height, width;
  int64_t outputs, out_height, out_width;
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, dilation_y, dilation_x;
  int64_t pad_top, pad_left;
  byoc_strides src, dst;
  int64_t has_bias, post_ops;
} byoc_groups_params;

enum {
  BYOC_GROUPS_PIXELS = 8,     /* at once */
  BYOC_GROUPS_ALONE = 1 << 15 /* multiplications that are not worth waking another thread */
};

static inline int byoc_groups_is_depthwise(const byoc_groups_params* p) {
  return p->channels == 1 && p->outputs == 1;
}

/* Groups whose channels find room in one vector, and whose outputs do in another: they are computed
   at once. A larger group has vectors of its own. */
static inline int64_t byoc_groups_together(const byoc_groups_params* p) {
  return byoc_max(byoc_lanes(p->isa) / byoc_max(p->channels, p->outputs), 1);
}

/* Vectors of outputs of groups that are computed at once, and of all groups; and blocks of pixels
   in a row of results. */
static inline int64_t byoc_groups_parts(const byoc_groups_params* p) {
  const int64_t lanes = byoc_lanes(p->isa);
  return (byoc_groups_together(p) * p->outputs + lanes - 1) / lanes;
}
static inline int64_t byoc_groups_vectors(const byoc_groups_params* p) {
  const int64_t together = byoc_groups_together(p);
  return (p->groups + together - 1) / together * byoc_groups_parts(p);
}
static inline int64_t byoc_groups_blocks(const byoc_groups_params* p) {
  return (p->out_width + BYOC_GROUPS_PIXELS - 1) / BYOC_GROUPS_PIXELS;
}

/* Weights of one output. */
static inline int64_t byoc_groups_taps(const byoc_groups_params* p) {
  return p->channels * p->kernel_height * p->kernel_width;
}

static inline size_t byoc_groups_packed_bytes(const byoc_groups_params* p) {
  return (size_t)(byoc_groups_vectors(p) * byoc_lanes(p->isa) * byoc_groups_taps(p)) * 4;
}

/* The taps of a row of the kernel that read a pixel of the source once for all results; none where
   each of them reads it anew. */
static inline int64_t byoc_groups_wide(const byoc_groups_params* p) {
  const int is_depthwise = byoc_groups_is_depthwise(p);
  const int has_code =
      is_depthwise ? p->kernel_width == 5 || p->kernel_width == 7 : p->kernel_width > 2;
  if (!has_code || p->dilation_x != 1 || p->stride_x > 2) return 0;
  return is_depthwise ? p->kernel_width : 3;
}

#endif /* BYOC_GROUPS_PLAN_H_ */
