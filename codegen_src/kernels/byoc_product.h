/* SPDX-License-Identifier: Apache-2.0
   Product with constant weights, float32: rows x depth times depth x columns, a bias, and the
   post-operations.

   The weights lie in panels (byoc_product_pack.h), as many columns wide as two vectors, so that
   they are read in the order in which they lie. A thread multiplies a block of rows, whose numbers
   stay in the second-level cache, by one or two panels at a time: a few rows at once, so that each
   vector of weights that is loaded serves them all. All sizes are parameters.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_PRODUCT_H_
#define BYOC_PRODUCT_H_

#include "byoc_product_plan.h"
#include "byoc_share.h"

#define BYOC_BODY "byoc_product_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_product_on_thread(const int64_t* params, void* const* data, void* scratch,
                                         int64_t part, int64_t parts) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  float* own = (float*)scratch + part * byoc_product_scratch_floats(p);
  BYOC_FOR_ISA(p->isa, product_part, (p, part, parts, data, own));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_product(const int64_t* params, void* const* data, void* scratch, int threads,
                               char* error) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  const int alone = p->rows * p->columns * p->depth < BYOC_PRODUCT_ALONE;
  (void)error;
  return byoc_on_team(byoc_product_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_PRODUCT_H_ */
