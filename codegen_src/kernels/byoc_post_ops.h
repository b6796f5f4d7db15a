/* SPDX-License-Identifier: Apache-2.0
   What kernels compute: convolutions of images and products of matrices, the places of their
   numbers, and the operations on a result before it is stored. */
#ifndef BYOC_POST_OPS_H_
#define BYOC_POST_OPS_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"

/* Strides of an image in floats. Channels lie in blocks of `lanes`, next to each other inside a
   block: channels-last is one block, as long as there are channels. */
typedef struct byoc_strides {
  int64_t image, row, pixel, block, lanes;
} byoc_strides;

static inline int64_t byoc_channel_offset(const byoc_strides* s, int64_t channel) {
  /* A division takes as long as the results of some vectors. */
  if (channel < s->lanes) return channel;
  return channel / s->lanes * s->block + channel % s->lanes;
}

/* From a channel to the one `channels` behind it, if both begin a block or there is only one. */
static inline int64_t byoc_channel_step(const byoc_strides* s, int64_t channels) {
  return s->block == 0 ? channels : channels / s->lanes * s->block;
}

/* Where a result lies: its image, pixel and channel. The rows of a matrix are pixels of a row. */
typedef struct byoc_position {
  int64_t image, y, x, channel;
} byoc_position;

static inline int64_t byoc_offset(const byoc_strides* s, const byoc_position* at) {
  return at->image * s->image + at->y * s->row + at->x * s->pixel +
         byoc_channel_offset(s, at->channel);
}

typedef enum byoc_post_op_kind {
  BYOC_RELU,   /* x < 0 ? alpha * x : x */
  BYOC_CLIP,   /* from alpha to beta */
  BYOC_LINEAR, /* alpha * x + beta */
  BYOC_ABS,
  BYOC_SQUARE,
  BYOC_HARDSIGMOID, /* clip(alpha * x + beta, 0, 1) */
  BYOC_HARDSWISH,   /* x * hardsigmoid(x) */
  BYOC_LOGISTIC,
  BYOC_SWISH, /* x * logistic(alpha * x) */
  BYOC_GELU_ERF,
  BYOC_GELU_TANH,
  BYOC_ROUND, /* to the nearest integer, ties to the even one */
  BYOC_LOG,
  BYOC_SOFT_RELU, /* log(1 + exp(alpha * x)) / alpha */
  BYOC_ADD,       /* the others take an operand */
  BYOC_SUB,
  BYOC_MUL,
  BYOC_DIV,
  BYOC_MAX, /* of these two, a NaN of either stays */
  BYOC_MIN
} byoc_post_op_kind;

typedef enum byoc_operand { BYOC_PER_TENSOR, BYOC_PER_CHANNEL, BYOC_PER_ELEMENT } byoc_operand;

typedef enum byoc_dtype { BYOC_F32, BYOC_S32, BYOC_S8, BYOC_U8, BYOC_BF16, BYOC_F16 } byoc_dtype;

static inline int64_t byoc_dtype_bytes(int64_t dtype) {
  return dtype == BYOC_F32 || dtype == BYOC_S32 ? 4 : dtype == BYOC_S8 || dtype == BYOC_U8 ? 1 : 2;
}

/* As it stands among the parameters of a kernel. */
typedef struct __attribute__((may_alias)) byoc_post_op {
  int64_t kind;
  float alpha, beta;
  int64_t operand; /* which of the data of the kernel; -1 for none */
  int64_t form;    /* of the operand: a number, one per channel, or one per element of the result */
  byoc_strides strides; /* of an operand per element */
  int64_t dtype;        /* byoc_dtype of the operand; only sums of integers know others than F32 */
} byoc_post_op;

/* How many of them have an operand. */
static inline int64_t byoc_operands(const byoc_post_op* post_ops, int64_t count) {
  int64_t operands = 0;
  for (int64_t k = 0; k < count; ++k) operands += post_ops[k].operand >= 0;
  return operands;
}

/* Numbers from a weight, before it is packed, to that of the next group, output of a group,
   channel, and tap of a window, whose rows follow each other. */
typedef struct byoc_weight_strides {
  int64_t group, output, channel, tap;
} byoc_weight_strides;

/* A convolution of images as kernels and their packing take it, alone or at the begin of their
   parameters; the post-operations follow these. Channels and outputs are those of one group. A
   product of matrices is one with windows of one pixel, whose rows are the pixels of one line. */
typedef struct __attribute__((may_alias)) byoc_convolution {
  int64_t isa;     /* byoc_isa */
  int64_t threads; /* that are worth waking, and that there is scratch memory for */
  int64_t images, groups;
  int64_t channels, height, width;
  int64_t outputs, out_height, out_width;
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, dilation_y, dilation_x; /* dilations of 1 leave no holes */
  int64_t pad_top, pad_left;
  byoc_strides src, dst;
  byoc_weight_strides weights;
  int64_t has_bias, post_ops;
} byoc_convolution;

/* Weights of one output; and all multiplications. */
static inline int64_t byoc_taps(const byoc_convolution* c) {
  return c->channels * c->kernel_height * c->kernel_width;
}
static inline int64_t byoc_products_of(const byoc_convolution* c) {
  return c->images * c->out_height * c->out_width * c->groups * c->outputs * byoc_taps(c);
}

/* Taps of a row or column of a window that lie inside of the source: from `first` to before `last`.
 */
typedef struct byoc_inside {
  int64_t first, last;
} byoc_inside;

/* `from`: the pixel of the first tap, which may lie beside the `size` pixels. */
static inline byoc_inside byoc_taps_inside(int64_t from, int64_t size, int64_t dilation,
                                           int64_t taps) {
  byoc_inside inside;
  inside.first = from >= 0 ? 0 : (-from + dilation - 1) / dilation;
  inside.last = size <= from ? 0 : byoc_min((size - 1 - from) / dilation + 1, taps);
  inside.last = byoc_max(inside.last, inside.first);
  return inside;
}

/* What becomes of sums in memory: bias and post-operations, and where the results lie. */
typedef struct byoc_results {
  const byoc_post_op* post_ops;
  int64_t count;
  void* const* data; /* of the kernel, with the operands */
  const float* bias; /* NULL: none, or the sums begin with it */
  float* to;
  byoc_strides strides;
} byoc_results;

/* `first`: which of the data stands behind the bias. The result stands behind the operands. */
static inline byoc_results byoc_results_of(const byoc_post_op* post_ops, int64_t count,
                                           void* const* data, int64_t first,
                                           const byoc_strides* strides) {
  float* to = (float*)data[first + byoc_operands(post_ops, count)];
  const byoc_results results = {post_ops, count, data, NULL, to, *strides};
  return results;
}

static inline byoc_results byoc_convolved(const byoc_convolution* c, const byoc_post_op* post_ops,
                                          void* const* data) {
  return byoc_results_of(post_ops, c->post_ops, data, 2 + c->has_bias, &c->dst);
}

/* What registers do at the end of a kernel, in this order, each if there is such a thing: a number
   per element is added, the result limited to [low, high] or taken to its hardswish, and
   scale * x + shift of that. */
typedef struct byoc_end {
  int fits;                      /* that is all that there is to do; else nothing is done there */
  const byoc_post_op* added;     /* NULL: nothing */
  float low, high;               /* infinite: no limit */
  const byoc_post_op* hardswish; /* NULL: none */
  int scaled;
  float scale, shift;
} byoc_end;
static inline byoc_end byoc_end_of(const byoc_post_op* op, int64_t count) {
  const byoc_post_op* last = op + count;
  const float infinity = __builtin_inff();
  const byoc_end nothing = {0, NULL, -infinity, infinity, NULL, 0, 1, 0};
  byoc_end end = nothing;
  if (op < last && op->kind == BYOC_ADD && op->form == BYOC_PER_ELEMENT) end.added = op++;
  if (op < last && op->kind == BYOC_RELU && op->alpha == 0) {
    end.low = 0;
    ++op;
  } else if (op < last && op->kind == BYOC_CLIP) {
    end.low = op->alpha;
    end.high = op->beta;
    ++op;
  } else if (op < last && op->kind == BYOC_HARDSWISH) {
    end.hardswish = op++;
  }
  for (; op < last && op->kind == BYOC_LINEAR; ++op) {
    end.scaled = 1;
    end.scale *= op->alpha;
    end.shift = end.shift * op->alpha + op->beta;
  }
  end.fits = op == last;
  return end.fits ? end : nothing;
}

/* What a product of matrices reads and writes: c = start + a b + added, and what follows in
   registers. Each `_row` is the floats between two rows, 0 for the same numbers in each. `b` lies
   in panels, `b_panel` apart. */
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

#endif /* BYOC_POST_OPS_H_ */
