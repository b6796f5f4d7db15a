/* SPDX-License-Identifier: Apache-2.0
   What a product of matrices reads and writes: c = start + a b + added, and what follows in
   registers. */
#ifndef BYOC_MATRICES_H_
#define BYOC_MATRICES_H_

#include <stddef.h>
#include <stdint.h>

#include "byoc_post_ops.h"

/* Each `_row` is the floats between two rows, 0 for the same numbers in each. `b` lies in panels,
   `b_panel` apart. */
typedef struct byoc_matrices {
  int64_t depth; /* columns of a, rows of b */
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_panel;
  const float* start; /* NULL: zeros */
  int64_t start_row;
  const float* added; /* NULL: nothing; it may be c itself */
  int64_t added_row;
  const byoc_end* end; /* what is done behind that; NULL: nothing */
  float* c;
  int64_t c_row;
} byoc_matrices;

/* a b alone */
static inline byoc_matrices byoc_plain_product(const float* a, int64_t a_row, const float* b,
                                               int64_t b_panel, int64_t depth, float* c,
                                               int64_t c_row) {
  byoc_matrices m = {depth, a, a_row, b, b_panel, NULL, 0, NULL, 0, NULL, c, c_row};
  return m;
}

/* Goes on by some rows, and by columns whose panels begin at `b` already. In place, number by
   number: to load a pair that was just stored one by one would wait for all stores before it. */
static inline void byoc_move(byoc_matrices* m, int64_t rows, int64_t columns) {
  m->a += rows * m->a_row;
  if (m->start != NULL) m->start += rows * m->start_row + columns;
  if (m->added != NULL) m->added += rows * m->added_row + columns;
  m->c += rows * m->c_row + columns;
}

#endif /* BYOC_MATRICES_H_ */
