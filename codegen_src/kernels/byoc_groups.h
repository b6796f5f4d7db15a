/* SPDX-License-Identifier: Apache-2.0
   Convolution in two dimensions, float32, of groups of few channels: those of a depthwise one have
   one channel and one output each.

   A vector runs across the outputs of several groups, for a few pixels of a row of results at once.
   Its products take one channel of each of these groups, which a permutation of the lanes spreads
   over the group's outputs; a depthwise convolution needs none. Along a row of the kernel, each
   pixel of the source is loaded once for all results, and so is each weight.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_GROUPS_H_
#define BYOC_GROUPS_H_

#include "byoc_groups_plan.h"

#define BYOC_BODY "byoc_groups_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_groups_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const byoc_groups_params* p = (const byoc_groups_params*)params;
  const int64_t items = p->images * p->out_height * byoc_groups_blocks(p) * byoc_groups_vectors(p);
  (void)scratch;
  BYOC_FOR_ISA(p->isa, groups_items, (p, items * part / parts, items * (part + 1) / parts, data));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_groups(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const byoc_groups_params* p = (const byoc_groups_params*)params;
  const int64_t pixels = p->images * p->out_height * p->out_width;
  const int alone =
      pixels * p->groups * p->outputs * byoc_groups_taps(p) < (int64_t)BYOC_GROUPS_ALONE;
  (void)error;
  return byoc_on_team(byoc_groups_on_thread, params, data, scratch, alone ? 1 : threads);
}

#endif /* BYOC_GROUPS_H_ */
