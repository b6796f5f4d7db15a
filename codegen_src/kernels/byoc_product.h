/* SPDX-License-Identifier: Apache-2.0
   Product with constant weights, float32: rows x depth times depth x columns, a bias, and the
   post-operations. Its parameters are those of a convolution of one group with windows of one
   pixel, whose results lie evenly from the first pixel to the last: they are the rows, the outputs
   are the columns, and the channels the depth.

   The weights lie in panels, as many columns wide as two vectors, so that
   they are read in the order in which they lie. A thread multiplies a block of rows, whose numbers
   stay in the second-level cache, by one or two panels at a time: a few rows at once, so that each
   vector of weights that is loaded serves them all. All sizes are parameters. */
#ifndef BYOC_PRODUCT_H_
#define BYOC_PRODUCT_H_

#include "byoc_post_ops.h"

enum {
  BYOC_PRODUCT_ROWS = 144,    /* of a block, at most: multiples of 6 and, nearly, of 14 */
  BYOC_PRODUCT_NEAR = 1 << 16 /* weights that the next call may still find in a cache */
};

static inline size_t byoc_product_packed_bytes(const byoc_convolution* p) {
  return (size_t)(byoc_round_up(p->outputs, byoc_panel(p->isa)) * p->channels) * 4;
}

static inline int64_t byoc_product_rows(const byoc_convolution* p) {
  return p->images * p->out_height * p->out_width;
}

/* Floats from a row of the source to the next one of its line; and where a row begins: the lines of
   all images lie evenly. */
static inline int64_t byoc_product_src_row(const byoc_convolution* p) {
  return p->stride_x * p->src.pixel;
}
static inline int64_t byoc_product_place(const byoc_convolution* p, int64_t row) {
  return row / p->out_width * p->stride_y * p->src.row +
         row % p->out_width * byoc_product_src_row(p);
}

/* Whether the rows of the source do not lie evenly, so that a block of them is copied first; and
   floats from one to the next then. */
static inline int byoc_product_copies(const byoc_convolution* p) {
  return byoc_product_rows(p) > p->out_width &&
         p->stride_y * p->src.row != p->out_width * byoc_product_src_row(p);
}
static inline int64_t byoc_product_copied_row(const byoc_convolution* p) {
  return byoc_round_up(p->channels, BYOC_CACHE_LINE_FLOATS) + BYOC_CACHE_LINE_FLOATS;
}

/* Memory of one thread: sums of two panels, behind them the rows of a block. */
static inline int64_t byoc_product_block_rows(const byoc_convolution* p) {
  return byoc_min(byoc_product_rows(p), BYOC_PRODUCT_ROWS);
}
static inline int64_t byoc_product_sums(const byoc_convolution* p) {
  return byoc_product_block_rows(p) * 2 * byoc_panel(p->isa);
}
static inline int64_t byoc_product_scratch_floats(const byoc_convolution* p) {
  const int64_t rows = byoc_product_copies(p) ? byoc_product_block_rows(p) : 0;
  return byoc_product_sums(p) + rows * byoc_product_copied_row(p);
}

static inline size_t byoc_product_scratch_bytes(const byoc_convolution* p) {
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

/* The numbers that a thread keeps: a scale for each channel, and room for a whole vector. */
static inline int64_t byoc_batch_norm_scales(int64_t channels) {
  return byoc_round_up(channels, BYOC_CACHE_LINE_FLOATS);
}

/* The parameters of a product behind a normalisation are those of the product, the strides of whose
   source count pixels here, its post-operations, and behind them those of the normalisation. */
static inline const byoc_batch_norm_params* byoc_batch_norm_of(const byoc_convolution* p) {
  return (const byoc_batch_norm_params*)((const byoc_post_op*)(p + 1) + p->post_ops);
}

/* Memory of one thread: sums of two panels, a scale for each channel, the rows of a block. */
static inline int64_t byoc_batch_norm_product_floats(const byoc_convolution* p) {
  return byoc_product_sums(p) + byoc_batch_norm_scales(p->channels) +
         byoc_product_block_rows(p) * byoc_product_copied_row(p);
}

static inline size_t byoc_batch_norm_product_scratch_bytes(const byoc_convolution* p) {
  return (size_t)(p->threads * byoc_batch_norm_product_floats(p)) * 4;
}

#define BYOC_BODY "byoc_product.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_KERNEL_FOR_ISA(product, byoc_convolution, p->isa, p->threads)

/* Panels of the weights of a group, those of a part: a panel's rows are the channels, and of each
   of them the taps. */
BYOC_FUNCTION void byoc_pack_panels(const byoc_convolution* p, const float* weights, float* packed,
                                    int64_t part, int64_t parts) {
  const byoc_weight_strides* s = &p->weights;
  const int64_t panel = byoc_panel(p->isa), panels = (p->outputs + panel - 1) / panel;
  const int64_t taps = p->kernel_height * p->kernel_width, down = taps == 1 ? s->channel : s->tap;
  const int64_t run = s->channel == taps * down ? p->channels : 1; /* that lie evenly */
  for (int64_t b = panels * part / parts; b < panels * (part + 1) / parts; ++b) {
    const int64_t first = b * panel;
    for (int64_t c = 0; c < p->channels; c += run) {
      byoc_pack_panel(weights + first * s->output + c * s->channel, down, s->output, run * taps,
                      byoc_min(panel, p->outputs - first), panel,
                      packed + (first * p->channels + c * panel) * taps);
    }
  }
}

/* params: as of byoc_product. data: the weights, and what is made of them: panel of columns, depth,
   column; the last panel is filled up with zeros. */
BYOC_KERNEL_BY(product_pack, byoc_convolution, threads,
               byoc_pack_panels(p, (const float*)data[0], (float*)data[1], part, parts))

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* A block of rows times one or two panels from `panel` on. */
BYOC_INLINE void BYOC_NAME(product_block)(const byoc_convolution* p, const byoc_end* end,
                                          const byoc_results* results, const float* a,
                                          int64_t a_row, int64_t row, int64_t rows, int64_t panel,
                                          int64_t panels, void* const* data, float* sums) {
  /* Weights that all rows are multiplied by at once. On AVX2 they stay in the first-level cache; on
     AVX-512 that is no faster. */
  enum { kDepth = BYOC_LANES == 8 ? 384 : 1024 };
  const int64_t depth = p->channels, column = panel * BYOC_PANEL;
  const int64_t wide = panels * BYOC_PANEL;
  const int64_t columns = byoc_min(p->outputs - column, wide);
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
      m.c = results->to + row * p->dst.pixel + column;
      m.c_row = p->dst.pixel;
      if (end->added != NULL) {
        m.added_row = end->added->strides.pixel;
        m.added = (const float*)data[end->added->operand] + row * m.added_row + column;
      }
      m.end = end;
    }
    BYOC_NAME(products)(rows, panels, &m,
                        depth * p->outputs > BYOC_PRODUCT_NEAR
                            ? b + (s + 1 < steps ? bottom : panels * depth) * BYOC_PANEL
                            : NULL);
    m.start = sums;
    m.start_row = 2 * BYOC_PANEL;
  }
  if (direct) return;
  const byoc_position at = {0, 0, row, column};
  BYOC_NAME(finish_sums)(results, sums, 2 * BYOC_PANEL, rows, at, column + columns);
}

/* Gives the rows of a block of the source: where they lie, or copied or computed in `room`. */
typedef const float* (*BYOC_NAME(product_source))(const byoc_convolution* p, const void* source,
                                                  int64_t row, int64_t rows, float* room);

/* Those of a matrix, which are copied if they do not lie evenly. */
BYOC_INLINE const float* BYOC_NAME(product_copy)(const byoc_convolution* p, const void* source,
                                                 int64_t row, int64_t rows, float* room) {
  const float* src = (const float*)source;
  const int64_t step = byoc_product_copied_row(p);
  if (!byoc_product_copies(p)) return src + row * byoc_product_src_row(p);
  for (int64_t i = 0; i < rows; ++i) {
    memcpy(room + i * step, src + byoc_product_place(p, row + i), (size_t)p->channels * 4);
  }
  return room;
}

/* A thread's share of the result, by blocks of rows. `a_row`: floats between the rows that the
   source gives; `room`: for those of a block. */
BYOC_INLINE void BYOC_NAME(product_blocks)(const byoc_convolution* p, void* const* data,
                                           BYOC_NAME(product_source) give, const void* source,
                                           int64_t a_row, float* sums, float* room, int64_t part,
                                           int64_t parts) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  const byoc_share share =
      byoc_divide(byoc_product_rows(p), BYOC_PAIR_ROWS, p->outputs, BYOC_PANEL, part, parts);
  const int64_t rows = share.last_row - share.first_row;
  const byoc_end end = byoc_end_of(post_ops, p->post_ops);
  const byoc_results results = byoc_convolved(p, post_ops, data);
  const int64_t blocks = (rows + BYOC_PRODUCT_ROWS - 1) / BYOC_PRODUCT_ROWS;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + rows * block / blocks;
    const int64_t count = share.first_row + rows * (block + 1) / blocks - first;
    const float* a = give(p, source, first, count, room);
    for (int64_t panel = share.first_panel; panel < share.last_panel; panel += 2) {
      BYOC_NAME(product_block)(p, &end, &results, a, a_row, first, count, panel,
                               byoc_min(2, share.last_panel - panel), data, sums);
    }
  }
}

/* The work of one thread of a team. */
BYOC_NO_INLINE void BYOC_NAME(product_part)(const byoc_convolution* p, void* const* data,
                                            void* scratch, int64_t part, int64_t parts) {
  float* sums = (float*)scratch + part * byoc_product_scratch_floats(p);
  const int64_t a_row =
      byoc_product_copies(p) ? byoc_product_copied_row(p) : byoc_product_src_row(p);
  BYOC_NAME(product_blocks)(p, data, BYOC_NAME(product_copy), data[0], a_row, sums,
                            sums + byoc_product_sums(p), part, parts);
}

#endif /* BYOC_PRODUCT_H_ */
