/* SPDX-License-Identifier: Apache-2.0
   Batch normalisation with given statistics, float32, channels last, and a relu: of one source, or
   of several that are read as if they were joined along their channels.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_BATCH_NORM_H_
#define BYOC_BATCH_NORM_H_

#include "byoc_batch_norm_plan.h"

#define BYOC_BODY "byoc_batch_norm_body.h"
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

#endif /* BYOC_BATCH_NORM_H_ */
