/* SPDX-License-Identifier: Apache-2.0
   Convolutions and products of 8-bit integers, whose sums are exact on every CPU; scales, zero
   points, a bias and post-operations; the result in 8 bits, in 32, or in float32.

   The numbers are widened to 16 bits, where vpmaddwd adds the products of two neighbours in 32
   bits. (vpmaddubsw would take the bytes themselves, and saturates at 16 bits.) The weights are
   widened when they are packed, in panels as wide as two vectors. A thread widens the windows of a
   block of pixels, less the zero point, and multiplies a few of them at once by each panel. A
   depthwise convolution multiplies the even channels of a tap by weights between zeros, then the
   odd ones. Windows of 3 x 3 pixels may be computed in tiles (byoc_integer_winograd_body.h).

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_INTEGER_H_
#define BYOC_INTEGER_H_

#include "byoc_integer_plan.h"
#include "byoc_share.h"

/* A number of the data, or what stands for none. */
static inline float byoc_integer_scale(void* const* data, int64_t at) {
  return at < 0 ? 1.f : *(const float*)data[at];
}
static inline int32_t byoc_integer_zero(void* const* data, int64_t at) {
  return at < 0 ? 0 : *(const int32_t*)data[at];
}

#define BYOC_BODY "byoc_integer_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_integer_on_thread(const int64_t* params, void* const* data, void* scratch,
                                         int64_t part, int64_t parts) {
  const byoc_integer_params* p = (const byoc_integer_params*)params;
  char* own = (char*)scratch + part * byoc_integer_thread_bytes(p);
  BYOC_FOR_ISA(p->isa, integer_part, (p, part, parts, data, own));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, what the parameters name, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_integer(const int64_t* params, void* const* data, void* scratch, int threads,
                               char* error) {
  const byoc_integer_params* p = (const byoc_integer_params*)params;
  const int alone =
      p->images * p->out_height * p->out_width * p->groups * p->columns * byoc_integer_depth(p) <
      (int64_t)BYOC_INTEGER_ALONE;
  (void)error;
  return byoc_on_team(byoc_integer_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_INTEGER_H_ */
