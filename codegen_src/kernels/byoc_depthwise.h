/* SPDX-License-Identifier: Apache-2.0
   Depthwise convolution in two dimensions, float32: each channel by a kernel of its own.

   A few pixels of a row of results are computed at once for one vector of channels. Along a row of
   the kernel, each pixel of the source is loaded once for all of them, and so is each weight.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_DEPTHWISE_H_
#define BYOC_DEPTHWISE_H_

#include "byoc_depthwise_plan.h"

#define BYOC_BODY "byoc_depthwise_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_depthwise_on_thread(const int64_t* params, void* const* data, void* scratch,
                                           int64_t part, int64_t parts) {
  const byoc_depthwise_params* p = (const byoc_depthwise_params*)params;
  const int64_t items =
      p->images * p->out_height * byoc_depthwise_blocks(p) * byoc_depthwise_vectors(p);
  (void)scratch;
  BYOC_FOR_ISA(p->isa, depthwise_items,
               (p, items * part / parts, items * (part + 1) / parts, data));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_depthwise(const int64_t* params, void* const* data, void* scratch,
                                 int threads, char* error) {
  const byoc_depthwise_params* p = (const byoc_depthwise_params*)params;
  const int alone =
      p->images * p->out_height * p->out_width * p->channels * byoc_depthwise_taps(p) <
      (int64_t)BYOC_DEPTHWISE_ALONE;
  (void)error;
  return byoc_on_team(byoc_depthwise_on_thread, params, data, scratch, alone ? 1 : threads);
}

#endif /* BYOC_DEPTHWISE_H_ */
