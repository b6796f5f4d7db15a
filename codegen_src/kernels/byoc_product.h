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

/* Rows and columns (in panels) of one thread: its place in a grid of threads. */
typedef struct byoc_product_share {
  int64_t first_row, last_row, first_panel, last_panel;
} byoc_product_share;

/* The grid whose threads have the least to multiply and to read; `unit`: rows that are multiplied
   at once. */
static inline byoc_product_share byoc_product_divide(const byoc_product_params* p, int64_t unit,
                                                     int64_t thread, int64_t team) {
  const int64_t panel = byoc_panel(p->isa);
  const int64_t passes = (p->rows + unit - 1) / unit, panels = (p->columns + panel - 1) / panel;
  int64_t down = 1, least = -1;
  for (int64_t d = 1; d <= team; ++d) {
    const int64_t across = team / d;
    if (d * across != team) continue;
    const int64_t rows = (passes + d - 1) / d * unit;
    const int64_t columns = (panels + across - 1) / across * panel;
    const int64_t cost = rows * columns + 16 * (rows + columns);
    if (least >= 0 && cost >= least) continue;
    least = cost;
    down = d;
  }
  const int64_t across = team / down, row = thread / across, column = thread % across;
  byoc_product_share share;
  share.first_row = passes * row / down * unit;
  share.last_row = byoc_min(passes * (row + 1) / down * unit, p->rows);
  share.first_panel = panels * column / across;
  share.last_panel = panels * (column + 1) / across;
  return share;
}

#define BYOC_SIMD_AVX2
#include "byoc_product_body.h"
#undef BYOC_SIMD_AVX2
#define BYOC_SIMD_AVX512
#include "byoc_product_body.h"
#undef BYOC_SIMD_AVX512

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_FUNCTION int byoc_product(const int64_t* params, void* const* data, void* scratch, int threads,
                               char* error) {
  const byoc_product_params* p = (const byoc_product_params*)params;
  const int64_t team = byoc_min(threads, p->threads);
  const int alone = p->rows * p->columns * p->depth < BYOC_PRODUCT_ALONE;
  (void)error;
  BYOC_OMP(parallel num_threads((int)team) if (team > 1 && !alone))
  {
    const int64_t thread = byoc_thread(), present = byoc_team();
    (void)team;
    (void)alone;
    float* sums = (float*)scratch + thread * byoc_product_sums(p);
    if (p->isa == BYOC_AVX512) {
      byoc_product_part_avx512(p, thread, present, data, sums);
    } else {
      byoc_product_part_avx2(p, thread, present, data, sums);
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_PRODUCT_H_ */
