/* SPDX-License-Identifier: Apache-2.0
   Convolution 3x3 of stride 1 by Winograd's F(4x4, 3x3), as byoc_winograd.h, whose products are
   computed by AMX, as in byoc_split.h: each number of V and U is the sum of three bfloat16, and six
   of the nine products of two numbers' parts are computed. So both halves are float32's: a quarter
   of the multiplications, each of which takes less than half of AVX-512's time.

   A NaN or an infinity in the source changes all results of the tiles that read it, as there.

   C99 that is C++17 as well, for GCC 11 and Clang 12 or newer on x86-64: the library is built from
   this file, and emitted source includes it. The caller must know that the CPU has AMX and that the
   operating system lets it be used. */
#ifndef BYOC_SPLIT_WINOGRAD_H_
#define BYOC_SPLIT_WINOGRAD_H_

#include "byoc_split_winograd_body.h"

BYOC_FUNCTION int byoc_split_winograd_on_thread(const int64_t* params, void* const* data,
                                                void* scratch, int64_t part, int64_t parts) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  const byoc_split_params p = byoc_split_winograd_product(w);
  const int64_t tiles = byoc_winograd_tiles(w);
  float* const memory = (float*)scratch;
  if (w->over_outputs) {
    const int64_t source = byoc_split_winograd_source(w, tiles);
    const byoc_split_winograd_block all = {0, tiles, memory, NULL, source, 0, NULL};
    byoc_split_winograd_take(w, data, &all, tiles * part / parts, tiles * (part + 1) / parts);
    byoc_wait_for_team(parts);
    byoc_split_winograd_outputs(
        w, &p, part, parts, data, memory,
        memory + BYOC_POINTS * source + part * byoc_split_winograd_group_floats(w));
  } else {
    byoc_split_winograd_tiles(
        w, &p, part, parts, data,
        memory + part * byoc_split_winograd_block_floats(w, w->tiles_at_once));
  }
  return BYOC_OK;
}

/* The kernel. params: byoc_winograd_params of byoc_split_winograd_plan. data: source, packed
   weights, bias if there is one, the operands of the post-operations, result. */
BYOC_FUNCTION int byoc_split_winograd(const int64_t* params, void* const* data, void* scratch,
                                      int threads, char* error) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  (void)error;
  return byoc_on_team(byoc_split_winograd_on_thread, params, data, scratch,
                      byoc_min(threads, w->threads));
}

#endif /* BYOC_SPLIT_WINOGRAD_H_ */
