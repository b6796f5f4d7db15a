/* SPDX-License-Identifier: Apache-2.0
   The share of one thread in a product of matrices. */
#ifndef BYOC_SHARE_H_
#define BYOC_SHARE_H_

#include "byoc_kernel.h"

/* Rows and columns (in panels) of one thread: its place in a grid of threads. */
typedef struct byoc_share {
  int64_t first_row, last_row, first_panel, last_panel;
} byoc_share;

/* The grid whose threads have the least to multiply and to read; `unit`: rows that are multiplied
   at once; `panel`: columns of a panel. */
static inline byoc_share byoc_divide(int64_t all_rows, int64_t unit, int64_t all_columns,
                                     int64_t panel, int64_t thread, int64_t team) {
  const int64_t passes = (all_rows + unit - 1) / unit, panels = (all_columns + panel - 1) / panel;
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
  byoc_share share;
  share.first_row = passes * row / down * unit;
  share.last_row = byoc_min(passes * (row + 1) / down * unit, all_rows);
  share.first_panel = panels * column / across;
  share.last_panel = panels * (column + 1) / across;
  return share;
}

#endif /* BYOC_SHARE_H_ */
