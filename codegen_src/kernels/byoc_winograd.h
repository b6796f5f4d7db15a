/* SPDX-License-Identifier: Apache-2.0
   Convolutions by Winograd's minimal filtering, float32: F(4x4, 3x3) and F(2x2, 3x3) for kernels of
   3x3, F(2x2, 5x5) for those of 5x5, and F(4x4, 3x3) for those of 5x5 and stride 2.

   The result is cut into tiles of m x m (m: 4 or 2), each computed from n x n pixels, n = m + 2 for
   3x3 taps and m + 4 for 5x5:

     input transform     V[p] = B' d B        p: the n^2 points; d: the pixels of one tile, per term
     products            M[p] = V[p] U[p]     tiles x terms times terms x outputs, per group
     output transform    Y = A' M A           and the bias and the post-operations, on the tile

   U = G g G' is made of the weights once. Terms are the channels of a group. A stride of 2 makes
   four images of one, of every second pixel and line: these phases are terms too, each with the
   weights that fall on it, at most 3x3 of 5x5.

   F(4x4, 3x3) needs 36 multiplications where the direct convolution needs 144, F(2x2, 5x5) 36
   instead of 100, and with stride 2 it is 144 instead of 400. The matrices are those of Toom and
   Cook for the points 0, -1, 1, 1/2, -2 and infinity, whose rounding errors are half of those of
   the usual points 0, 1, -1, 2, -2 and infinity; those of n = 4 for 0, 1, -1 and infinity.

   A NaN or an infinity in the source changes all results of the tiles that read it, not its
   neighbours only.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits. */
#ifndef BYOC_WINOGRAD_H_
#define BYOC_WINOGRAD_H_

#include "byoc_winograd_plan.h"

#define BYOC_BODY "byoc_winograd_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_winograd_on_thread(const int64_t* params, void* const* data, void* scratch,
                                          int64_t part, int64_t parts) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  BYOC_FOR_ISA(w->isa, winograd_run, (w, data, (float*)scratch, part, parts));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
 * post-operations, result. */
BYOC_FUNCTION int byoc_winograd(const int64_t* params, void* const* data, void* scratch,
                                int threads, char* error) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  (void)error;
  return byoc_on_team(byoc_winograd_on_thread, params, data, scratch,
                      byoc_min(threads, w->threads));
}

#endif /* BYOC_WINOGRAD_H_ */
