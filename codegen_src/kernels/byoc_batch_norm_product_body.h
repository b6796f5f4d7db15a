/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_batch_norm_product.h that is compiled once per instruction set; no include
   guard. */

#include "byoc_vector.h"

/* The work of one thread of a team. */
BYOC_NO_INLINE void BYOC_NAME(batch_norm_product_part)(const byoc_product_params* p, int64_t thread,
                                                       int64_t team, void* const* data,
                                                       float* scratch) {
  const byoc_batch_norm_params* norm = byoc_batch_norm_of(p);
  const float* const* parts = (const float* const*)data;
  void* const* of_product = data + norm->parts + 3;
  const byoc_share share =
      byoc_divide(p->rows, BYOC_PAIR_ROWS, p->columns, BYOC_PANEL, thread, team);
  const int64_t rows = share.last_row - share.first_row;
  const byoc_end end = byoc_end_of((const byoc_post_op*)(p + 1), p->post_ops);
  float* scale = scratch + byoc_product_sums(p);
  float* normalised = scale + byoc_batch_norm_scales(p->depth);
  const int64_t step = byoc_product_copied_row(p);
  const int64_t blocks = (rows + BYOC_PRODUCT_ROWS - 1) / BYOC_PRODUCT_ROWS;
  BYOC_NAME(batch_norm_scale)(norm, parts + norm->parts, scale);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + rows * block / blocks;
    const int64_t count = share.first_row + rows * (block + 1) / blocks - first;
    for (int64_t i = 0; i < count; ++i) {
      BYOC_NAME(batch_norm_pixel)(norm, byoc_product_place(p, first + i), parts, scale,
                                  normalised + i * step);
    }
    BYOC_NAME(product_panels)(p, &end, &share, normalised, step, first, count, of_product, scratch);
  }
}

#include "byoc_vector_end.h"
