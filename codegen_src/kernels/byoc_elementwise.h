/* SPDX-License-Identifier: Apache-2.0
   Operations on each element of a tensor of float32, one after the other in registers. A NaN stays
   one, whatever bounds it meets. */
#ifndef BYOC_ELEMENTWISE_H_
#define BYOC_ELEMENTWISE_H_

#include "byoc_post_ops.h"

/* The parameters of the kernel; the operations follow them, the first one on the source. All
   tensors lie alike: a pixel is `channels` elements that lie next to each other, `pixels` of them
   follow each other, and as many for the channels of the next of `blocks`, and then all of it again
   for the next image. */
typedef struct __attribute__((may_alias)) byoc_elementwise_params {
  int64_t isa;   /* byoc_isa */
  int64_t count; /* of all elements: the last pixel may have fewer */
  int64_t channels, pixels, blocks;
  int64_t threads; /* at most */
  int64_t operations;
} byoc_elementwise_params;

#define BYOC_BODY "byoc_elementwise.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, the operands of the operations, result. */
BYOC_KERNEL_FOR_ISA(elementwise, byoc_elementwise_params, p->isa, p->threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* `rows` pixels from one on, of at most `all`. */
BYOC_INLINE void BYOC_NAME(elementwise_pixels)(const int all, const byoc_elementwise_params* p,
                                               void* const* data, int64_t pixel, int rows) {
  const byoc_post_op* operations = (const byoc_post_op*)(p + 1);
  const float* from = (const float*)data[0];
  float* to = (float*)data[1 + byoc_operands(operations, p->operations)];
  const int64_t base = pixel / p->pixels % p->blocks * p->channels;
  for (int64_t k = 0; k < p->channels; k += BYOC_LANES) {
    const int64_t at = pixel * p->channels + k;
    const int lanes = (int)byoc_min(byoc_min(BYOC_LANES, p->channels - k), p->count - at);
    const byoc_position position = {0, pixel, 0, base + k};
    BYOC_VEC o[8];
    if (lanes <= 0) break;
    for (int i = 0; i < all; ++i) {
      o[i] = BYOC_NAME(load_some)(from + at + (i < rows ? i : 0) * p->channels, lanes);
    }
    BYOC_NAME(post_operations)(operations, p->operations, data, position, lanes, all, 1, rows, 1,
                               o);
    for (int i = 0; i < rows; ++i) BYOC_NAME(store_some)(to + at + i * p->channels, o[i], lanes);
  }
}

BYOC_NO_INLINE void BYOC_NAME(elementwise_part)(const byoc_elementwise_params* p, void* const* data,
                                                void* scratch, int64_t part, int64_t parts) {
  const int64_t whole = p->count / p->channels, rest = p->count % p->channels > 0;
  const int64_t last = whole * (part + 1) / parts;
  (void)scratch;
  for (int64_t pixel = whole * part / parts; pixel < last;) {
    const int64_t of_block = p->pixels - pixel % p->pixels;
    const int rows = (int)byoc_min(byoc_min(8, of_block), last - pixel);
    if (rows == 1) {
      BYOC_NAME(elementwise_pixels)(1, p, data, pixel, 1);
    } else {
      BYOC_NAME(elementwise_pixels)(8, p, data, pixel, rows);
    }
    pixel += rows;
  }
  if (rest && part + 1 == parts) BYOC_NAME(elementwise_pixels)(1, p, data, whole, 1);
}

#endif /* BYOC_ELEMENTWISE_H_ */
