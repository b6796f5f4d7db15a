/* SPDX-License-Identifier: Apache-2.0
   Direct convolution in two dimensions, float32, for groups.

   A product of few channels is too thin for a product of matrices: to unfold the source takes
   longer than to multiply it. Here a few pixels of a row of results are computed at once for one
   panel of outputs. Each weight is loaded once for all of them, and the pixels of the source are
   read where they are, in any layout, by a table of the distances between the taps. So a shuffle of
   the channels before costs nothing.

   Written for AVX2 alone: where there is AVX-512, oneDNN has good primitives for these shapes.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_DIRECT_H_
#define BYOC_DIRECT_H_

#include "byoc_direct_plan.h"

#define BYOC_SIMD_AVX2
#include "byoc_direct_body.h"
#undef BYOC_SIMD_AVX2

BYOC_FUNCTION int byoc_direct_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const byoc_direct_params* p = (const byoc_direct_params*)params;
  const int64_t rows = p->images * p->out_height * p->groups;
  char* own = (char*)scratch + part * byoc_direct_scratch_of_thread(p);
  byoc_direct_rows_avx2(p, rows * part / parts, rows * (part + 1) / parts, data, own);
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_direct(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const byoc_direct_params* p = (const byoc_direct_params*)params;
  const int alone =
      p->images * p->out_height * p->groups * p->out_width * p->outputs * byoc_direct_taps(p) <
      (int64_t)BYOC_DIRECT_ALONE;
  (void)error;
  return byoc_on_team(byoc_direct_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_DIRECT_H_ */
