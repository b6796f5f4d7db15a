/* SPDX-License-Identifier: Apache-2.0 */
/* Sets to zero the weights that are nothing beside the others. Training with weight decay leaves
   denormal numbers, and a CPU takes a hundred times as long to multiply by them. */
#ifndef BYOC_FLUSH_H_
#define BYOC_FLUSH_H_

#include "byoc_kernel.h"

enum {
  BYOC_FLUSH_TINY = (127 - 100) << 23,  /* the bits of 2^-100 */
  BYOC_FLUSH_BESIDE = (127 - 40) << 23, /* those of 2^-40 */
  BYOC_FLUSH_ALONE = 1 << 14            /* numbers that are not worth waking another thread */
};

enum { BYOC_FLUSH_HAS_TINY = 1, BYOC_FLUSH_HAS_LARGE = 2 };

/* What there is among the numbers of a part. */
BYOC_FUNCTION int byoc_flush_on_thread(const int64_t* params, void* const* data, void* scratch,
                                       int64_t part, int64_t parts) {
  const int32_t* bits = (const int32_t*)data[0]; /* without its sign, in the order of the numbers */
  const int64_t last = params[0] * (part + 1) / parts;
  int32_t tiny = 0, large = 0; /* negative if there is such a number */
  (void)scratch;
  BYOC_OMP(simd reduction(| : tiny, large))
  for (int64_t i = params[0] * part / parts; i < last; ++i) {
    const int32_t size = bits[i] & 0x7fffffff;
    tiny |= (size - BYOC_FLUSH_TINY) & -size;
    large |= BYOC_FLUSH_BESIDE - 1 - size;
  }
  return (tiny < 0 ? BYOC_FLUSH_HAS_TINY : 0) | (large < 0 ? BYOC_FLUSH_HAS_LARGE : 0);
}

/* Numbers below 2^-100 become 0 where one of all is at least 2^-40: 2^60 times as large. params:
   how many numbers. data: the numbers, float32. */
BYOC_FUNCTION int byoc_flush(const int64_t* params, void* const* data, void* scratch, int threads,
                             char* error) {
  const int64_t count = params[0];
  int32_t* bits = (int32_t*)data[0];
  (void)error;
  if (byoc_on_team(byoc_flush_on_thread, params, data, scratch,
                   count > BYOC_FLUSH_ALONE ? threads : 1) !=
      (BYOC_FLUSH_HAS_TINY | BYOC_FLUSH_HAS_LARGE))
    return BYOC_OK;
  for (int64_t i = 0; i < count; ++i) {
    if ((bits[i] & 0x7fffffff) < BYOC_FLUSH_TINY) bits[i] = 0;
  }
  return BYOC_OK;
}

#endif /* BYOC_FLUSH_H_ */
