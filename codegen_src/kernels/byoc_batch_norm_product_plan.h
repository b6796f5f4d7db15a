/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_batch_norm_product.h, and the memory that it takes. */
#ifndef BYOC_BATCH_NORM_PRODUCT_PLAN_H_
#define BYOC_BATCH_NORM_PRODUCT_PLAN_H_

#include "byoc_batch_norm_plan.h"
#include "byoc_product_plan.h"

/* The parameters are those of the product, whose `src_row` and `src_line` count pixels here, its
   post-operations, and behind them those of the normalisation. */
static inline const byoc_batch_norm_params* byoc_batch_norm_of(const byoc_product_params* p) {
  return (const byoc_batch_norm_params*)((const byoc_post_op*)(p + 1) + p->post_ops);
}

/* Memory of one thread: sums of two panels, a scale for each channel, the rows of a block. */
static inline int64_t byoc_batch_norm_product_floats(const byoc_product_params* p) {
  return byoc_product_sums(p) + byoc_batch_norm_scales(p->depth) +
         byoc_min(p->rows, BYOC_PRODUCT_ROWS) * byoc_product_copied_row(p);
}

static inline size_t byoc_batch_norm_product_scratch_bytes(const byoc_product_params* p) {
  return (size_t)(p->threads * byoc_batch_norm_product_floats(p)) * 4;
}

#endif /* BYOC_BATCH_NORM_PRODUCT_PLAN_H_ */
