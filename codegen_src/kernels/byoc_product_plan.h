/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_product.h and byoc_batch_norm.h, and the memory that they take. */
#ifndef BYOC_PRODUCT_PLAN_H_
#define BYOC_PRODUCT_PLAN_H_

#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. Rows lie `src_row` and `dst_row`
   floats apart, and those of an operand per element by its `strides.pixel`. Those of the source may
   be pixels of an image: each line has `line_rows` of them, and lines lie `src_line` apart. */
typedef struct __attribute__((may_alias)) byoc_product_params {
  int64_t isa;     /* byoc_isa */
  int64_t threads; /* that there is scratch memory for */
  int64_t rows, columns, depth;
  int64_t src_row, dst_row;
  int64_t line_rows, src_line;
  int64_t has_bias, post_ops;
} byoc_product_params;

/* The parameters of byoc_product_pack: number (k, n) of the weights lies at k * down + n * across.
 */
typedef struct __attribute__((may_alias)) byoc_product_pack_params {
  int64_t isa;
  int64_t columns, depth;
  int64_t down, across;
} byoc_product_pack_params;

enum {
  BYOC_PRODUCT_ROWS = 144,     /* of a block, at most: multiples of 6 and, nearly, of 14 */
  BYOC_PRODUCT_NEAR = 1 << 16, /* weights that the next call may still find in a cache */
  BYOC_PRODUCT_ALONE = 1 << 16 /* multiplications that are not worth waking another thread */
};

static inline size_t byoc_product_packed_bytes(int64_t isa, int64_t columns, int64_t depth) {
  return (size_t)(byoc_round_up(columns, byoc_panel(isa)) * depth) * 4;
}

/* The threads that are worth waking. */
static inline int64_t byoc_product_threads(const byoc_product_params* p) {
  return p->rows * p->columns * p->depth < BYOC_PRODUCT_ALONE ? 1 : p->threads;
}

/* Where a row of the source begins. */
static inline int64_t byoc_product_place(const byoc_product_params* p, int64_t row) {
  return row / p->line_rows * p->src_line + row % p->line_rows * p->src_row;
}

/* Whether the rows of the source do not lie evenly, so that a block of them is copied first; and
   floats from one to the next then. */
static inline int byoc_product_copies(const byoc_product_params* p) {
  return p->rows > p->line_rows && p->src_line != p->line_rows * p->src_row;
}
static inline int64_t byoc_product_copied_row(const byoc_product_params* p) {
  return byoc_round_up(p->depth, BYOC_CACHE_LINE_FLOATS) + BYOC_CACHE_LINE_FLOATS;
}

/* Memory of one thread: sums of two panels, behind them the rows of a block. */
static inline int64_t byoc_product_sums(const byoc_product_params* p) {
  return byoc_min(p->rows, BYOC_PRODUCT_ROWS) * 2 * byoc_panel(p->isa);
}
static inline int64_t byoc_product_scratch_floats(const byoc_product_params* p) {
  const int64_t rows = byoc_product_copies(p) ? byoc_min(p->rows, BYOC_PRODUCT_ROWS) : 0;
  return byoc_product_sums(p) + rows * byoc_product_copied_row(p);
}

static inline size_t byoc_product_scratch_bytes(const byoc_product_params* p) {
  return (size_t)(p->threads * byoc_product_scratch_floats(p)) * 4;
}

/* Behind it stand the channels of each part. */
typedef struct __attribute__((may_alias)) byoc_batch_norm_params {
  int64_t isa; /* byoc_isa */
  int64_t pixels, channels, parts;
  int64_t has_relu;
  double epsilon;
  int64_t threads; /* that there is scratch memory for */
} byoc_batch_norm_params;

enum { BYOC_BATCH_NORM_ALONE = 1 << 12 /* numbers that are not worth waking another thread */ };

/* The numbers that a thread keeps: a scale for each channel, and room for a whole vector. */
static inline int64_t byoc_batch_norm_scales(int64_t channels) {
  return byoc_round_up(channels, BYOC_CACHE_LINE_FLOATS);
}

/* The parameters of a product behind a normalisation are those of the product, whose `src_row` and
   `src_line` count pixels here, its post-operations, and behind them those of the normalisation. */
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

#endif /* BYOC_PRODUCT_PLAN_H_ */
