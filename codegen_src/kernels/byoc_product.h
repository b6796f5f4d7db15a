/* SPDX-License-Identifier: Apache-2.0
   Product with constant weights, float32: rows x depth times depth x columns, a bias, and the
   post-operations.

   The weights lie in panels, as many columns wide as two vectors, so that
   they are read in the order in which they lie. A thread multiplies a block of rows, whose numbers
   stay in the second-level cache, by one or two panels at a time: a few rows at once, so that each
   vector of weights that is loaded serves them all. All sizes are parameters.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_PRODUCT_H_
#define BYOC_PRODUCT_H_

#include "byoc_product_plan.h"

#define BYOC_BODY "byoc_product.h"
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

BYOC_FUNCTION int byoc_product_pack_on_thread(const int64_t* params, void* const* data,
                                              void* scratch, int64_t part, int64_t parts) {
  const byoc_product_pack_params* p = (const byoc_product_pack_params*)params;
  const float* weights = (const float*)data[0];
  float* packed = (float*)data[1];
  const int64_t panel = byoc_panel(p->isa), depth = p->depth;
  const int64_t panels = (p->columns + panel - 1) / panel;
  enum { kDeep = 16 }; /* a line of the cache where the weights are transposed */
  (void)scratch;
  for (int64_t b = panels * part / parts; b < panels * (part + 1) / parts; ++b) {
    const int64_t first = b * panel;
    const int64_t columns = byoc_min(panel, p->columns - first);
    for (int64_t top = 0; top < depth; top += kDeep) {
      const int64_t bottom = byoc_min(top + kDeep, depth);
      float* to = packed + first * depth;
      if (columns < panel) memset(to + top * panel, 0, (size_t)((bottom - top) * panel) * 4);
      if (p->across == 1) {
        for (int64_t k = top; k < bottom; ++k) {
          memcpy(to + k * panel, weights + k * p->down + first, (size_t)columns * 4);
        }
        continue;
      }
      for (int64_t n = 0; n < columns; ++n) {
        const float* column = weights + (first + n) * p->across;
        /* More columns than the hardware follows: it takes twice as long without this. */
        if (bottom < depth) __builtin_prefetch(column + bottom * p->down);
        for (int64_t k = top; k < bottom; ++k) to[k * panel + n] = column[k * p->down];
      }
    }
  }
  return BYOC_OK;
}

/* params: byoc_product_pack_params. data: the weights, and what is made of them: panel of columns,
   depth, column; the last panel is filled up with zeros. */
BYOC_FUNCTION int byoc_product_pack(const int64_t* params, void* const* data, void* scratch,
                                    int threads, char* error) {
  (void)error;
  return byoc_on_team(byoc_product_pack_on_thread, params, data, scratch, threads);
}

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* A block of rows times one or two panels from `panel` on. */
BYOC_INLINE void BYOC_NAME(product_block)(const byoc_product_params* p, const byoc_end* end,
                                          const byoc_results* results, const float* a,
                                          int64_t a_row, int64_t row, int64_t rows, int64_t panel,
                                          int64_t panels, void* const* data, float* sums) {
  /* Weights that all rows are multiplied by at once. On AVX2 they stay in the first-level cache,
     and the next ones are fetched meanwhile; on AVX-512 neither is faster. */
  enum { kFetches = BYOC_LANES == 8, kDepth = kFetches ? 384 : 1024 };
  const int64_t depth = p->depth, column = panel * BYOC_PANEL;
  const int64_t wide = panels * BYOC_PANEL;
  const int64_t columns = byoc_min(p->columns - column, wide);
  /* With few rows each weight is used once, whatever the order. */
  const int64_t deep = rows <= BYOC_PAIR_ROWS ? depth : (int64_t)kDepth;
  const int64_t steps = (depth + deep - 1) / deep;
  const int direct = end->fits && columns == wide;
  const float* b = (const float*)data[1] + panel * depth * BYOC_PANEL;
  float padded[2 * BYOC_PANEL];
  byoc_matrices m = byoc_plain_product(a, a_row, b, depth * BYOC_PANEL, 0, sums, 2 * BYOC_PANEL);
  m.start = p->has_bias ? (const float*)data[2] + column : NULL;
  if (m.start != NULL && columns < wide) {
    memset(padded, 0, sizeof(padded));
    memcpy(padded, m.start, (size_t)columns * 4);
    m.start = padded;
  }
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t top = depth * s / steps, bottom = depth * (s + 1) / steps;
    m.depth = bottom - top;
    m.a = a + top;
    m.b = b + top * BYOC_PANEL;
    if (direct && s + 1 == steps) {
      m.c = results->to + row * p->dst_row + column;
      m.c_row = p->dst_row;
      if (end->added != NULL) {
        m.added_row = end->added->strides.pixel;
        m.added = (const float*)data[end->added->operand] + row * m.added_row + column;
      }
      m.end = end;
    }
    BYOC_NAME(products)(rows, panels, &m,
                        kFetches && depth * p->columns > BYOC_PRODUCT_NEAR
                            ? b + (s + 1 < steps ? bottom : panels * depth) * BYOC_PANEL
                            : NULL);
    m.start = sums;
    m.start_row = 2 * BYOC_PANEL;
  }
  if (direct) return;
  const byoc_position at = {0, 0, row, column};
  BYOC_NAME(finish_sums)(results, sums, 2 * BYOC_PANEL, rows, at, column + columns);
}

/* Copies rows of the source that do not lie evenly. */
BYOC_INLINE void BYOC_NAME(product_copy)(const byoc_product_params* p, const float* src,
                                         int64_t row, int64_t rows, float* to) {
  const int64_t step = byoc_product_copied_row(p);
  for (int64_t i = 0; i < rows; ++i) {
    memcpy(to + i * step, src + byoc_product_place(p, row + i), (size_t)p->depth * 4);
  }
}

/* A block of rows times the panels of a thread. */
BYOC_INLINE void BYOC_NAME(product_panels)(const byoc_product_params* p, const byoc_end* end,
                                           const byoc_share* share, const float* a, int64_t a_row,
                                           int64_t row, int64_t rows, void* const* data,
                                           float* sums) {
  const byoc_strides dst = {0, 0, p->dst_row, 0, p->columns};
  const byoc_results results =
      byoc_results_of((const byoc_post_op*)(p + 1), p->post_ops, data, 2 + p->has_bias, &dst);
  for (int64_t panel = share->first_panel; panel < share->last_panel; panel += 2) {
    const int64_t panels = byoc_min(2, share->last_panel - panel);
    BYOC_NAME(product_block)(p, end, &results, a, a_row, row, rows, panel, panels, data, sums);
  }
}

/* The work of one thread of a team. */
BYOC_NO_INLINE void BYOC_NAME(product_part)(const byoc_product_params* p, int64_t thread,
                                            int64_t team, void* const* data, float* scratch) {
  const byoc_share share =
      byoc_divide(p->rows, BYOC_PAIR_ROWS, p->columns, BYOC_PANEL, thread, team);
  const int64_t rows = share.last_row - share.first_row;
  const byoc_end end = byoc_end_of((const byoc_post_op*)(p + 1), p->post_ops);
  const float* src = (const float*)data[0];
  const int copies = byoc_product_copies(p);
  float* copied = scratch + byoc_product_sums(p);
  const int64_t a_row = copies ? byoc_product_copied_row(p) : p->src_row;
  const int64_t blocks = (rows + BYOC_PRODUCT_ROWS - 1) / BYOC_PRODUCT_ROWS;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + rows * block / blocks;
    const int64_t count = share.first_row + rows * (block + 1) / blocks - first;
    if (copies) BYOC_NAME(product_copy)(p, src, first, count, copied);
    const float* a = copies ? copied : src + first * p->src_row;
    BYOC_NAME(product_panels)(p, &end, &share, a, a_row, first, count, data, scratch);
  }
}

#endif /* BYOC_PRODUCT_H_ */
