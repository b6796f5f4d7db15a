/* SPDX-License-Identifier: Apache-2.0
   Layer normalisation of rows of float32 or bytes, the same with a mean that counts as zero (RMS),
   softmax of bytes, means of float32: a row is
   converted to float32, normalised there, and quantised if its result is bytes, without leaving the
   first-level cache. The mean of equal numbers is exactly their value, and the variance is that of
   the distances from the mean.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_NORMALIZE_H_
#define BYOC_NORMALIZE_H_

#include <math.h>

#include "byoc_normalize_plan.h"

#define BYOC_BODY "byoc_normalize_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_normalize_on_thread(const int64_t* params, void* const* data, void* scratch,
                                           int64_t part, int64_t parts) {
  const byoc_normalize_params* p = (const byoc_normalize_params*)params;
  float* own = (float*)scratch + part * byoc_normalize_numbers(p);
  BYOC_FOR_ISA(p->isa, normalize_rows,
               (p, p->rows * part / parts, p->rows * (part + 1) / parts, data, own));
  return BYOC_OK;
}

/* The kernel. data: source, what the parameters name, result. */
BYOC_FUNCTION int byoc_normalize(const int64_t* params, void* const* data, void* scratch,
                                 int threads, char* error) {
  const byoc_normalize_params* p = (const byoc_normalize_params*)params;
  const int alone = p->rows * p->columns < (int64_t)BYOC_NORMALIZE_ALONE;
  (void)error;
  return byoc_on_team(byoc_normalize_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_NORMALIZE_H_ */
