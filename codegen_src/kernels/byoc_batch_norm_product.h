/* SPDX-License-Identifier: Apache-2.0
   The packed product of what a batch normalisation makes, as in a convolution 1x1 behind it: a
   thread normalises a block of pixels, which then lies in its cache, and multiplies it. So the
   result of the normalisation is neither written to memory nor read from there.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_BATCH_NORM_PRODUCT_H_
#define BYOC_BATCH_NORM_PRODUCT_H_

#include "byoc_batch_norm.h"
#include "byoc_batch_norm_product_plan.h"
#include "byoc_product.h"

#define BYOC_BODY "byoc_batch_norm_product_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_batch_norm_product_on_thread(const int64_t* params, void* const* data,
                                                    void* scratch, int64_t part, int64_t parts) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  float* own = (float*)scratch + part * byoc_batch_norm_product_floats(p);
  BYOC_FOR_ISA(p->isa, batch_norm_product_part, (p, part, parts, data, own));
  return BYOC_OK;
}

/* The kernel. data: the parts, gamma, beta, mean, variance (as of byoc_batch_norm), packed weights,
   bias if there is one, the operands of the post-operations, result (as of byoc_product, which
   finds the variance in the place of its source). */
BYOC_FUNCTION int byoc_batch_norm_product(const int64_t* params, void* const* data, void* scratch,
                                          int threads, char* error) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  const int alone = p->rows * p->columns * p->depth < BYOC_PRODUCT_ALONE;
  (void)error;
  return byoc_on_team(byoc_batch_norm_product_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_BATCH_NORM_PRODUCT_H_ */
