/* SPDX-License-Identifier: Apache-2.0
   Convolutions and products of matrices with constant weights in float32, by the matrix unit AMX,
   which multiplies bfloat16 and adds in float32.

   A float32 x is the sum of three bfloat16, each the nearest one to what the others leave:
   x = x1 + x2 + x3. Of the nine products of two numbers' parts, six are computed; the others are
   less than 2^-24 of the product, which is what float32 itself rounds away. The unit is sixteen
   times as fast as AVX-512, so six products cost less than one of float32. With two parts, three
   products of four are computed, at most 2^-16 + 2^-17 of a product is lost, and the weights take
   two thirds of the memory.

   A convolution is a product of matrices: a row of the first one is what a result reads. Each block
   of results has its part of the source copied, split, with padding, into the second-level
   cache; a tile of AMX then reads its rows from there, with the distance between what neighbouring
   results read as its stride, so that nothing is copied for each position of the kernel. The
   weights are split once (byoc_split_pack.h).

   C99 that is C++17 as well, for GCC 11 and Clang 12 or newer on x86-64: the library is built from
   this file, and emitted source includes it. The same bits on every CPU, with any number of
   threads. The caller must know that the CPU has AMX and that the operating system lets it be used.
 */
#ifndef BYOC_SPLIT_H_
#define BYOC_SPLIT_H_

#include "byoc_split_body.h"

BYOC_FUNCTION int byoc_split_on_thread(const int64_t* params, void* const* data, void* scratch,
                                       int64_t part, int64_t parts) {
  const byoc_split_params* p = (const byoc_split_params*)params;
  byoc_split_part(p, part, parts, data, (char*)scratch + (size_t)part * byoc_split_thread_bytes(p));
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_split(const int64_t* params, void* const* data, void* scratch, int threads,
                             char* error) {
  const byoc_split_params* p = (const byoc_split_params*)params;
  const int alone =
      p->images * byoc_split_image_rows(p) * p->outputs * byoc_split_chunks(p) * BYOC_TILE_DEPTH <
      BYOC_SPLIT_ALONE;
  (void)error;
  return byoc_on_team(byoc_split_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_SPLIT_H_ */
