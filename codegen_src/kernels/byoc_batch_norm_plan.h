/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_batch_norm.h, and the memory that it takes. */
#ifndef BYOC_BATCH_NORM_PLAN_H_
#define BYOC_BATCH_NORM_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"

/* Behind it stand the channels of each part. */
typedef struct __attribute__((may_alias)) byoc_batch_norm_params {
  int64_t isa; /* byoc_isa */
  int64_t pixels, channels, parts;
  int64_t has_relu;
  double epsilon;
  int64_t threads; /* that there is scratch memory for */
} byoc_batch_norm_params;

enum { BYOC_BATCH_NORM_ALONE = 1 << 12 /* numbers that are not worth waking another thread */ };

/* The numbers that a thread keeps: a scale for each channel, and room for a whole vector. */
static inline int64_t byoc_batch_norm_scales(int64_t channels) {
  return byoc_round_up(channels, BYOC_CACHE_LINE_FLOATS);
}

#endif /* BYOC_BATCH_NORM_PLAN_H_ */
