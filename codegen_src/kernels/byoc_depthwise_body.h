/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_depthwise.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"

/* The source of a block: pixels `first` to before `width` of its rows are there. */
typedef struct BYOC_NAME(depthwise_source) {
  int64_t pixel, row, rows, first, width;
} BYOC_NAME(depthwise_source);

/* A block of pixels of a row of results, and what it reads. */
typedef struct BYOC_NAME(depthwise_block) {
  const byoc_depthwise_params* p;
  const byoc_end* end;
  void* const* data;
  int64_t image, y, x; /* of the first result */
  int pixels;
  BYOC_NAME(depthwise_source) source;
  const float* src;     /* first pixel of the first row, which may lie beside the source */
  const float* weights; /* of that row */
  float* to;
} BYOC_NAME(depthwise_block);

/* Post-operations that are not done in registers. */
BYOC_NO_INLINE void BYOC_NAME(depthwise_finish)(const BYOC_NAME(depthwise_block) * b,
                                                int64_t channel, int lanes, BYOC_VEC* o) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(b->p + 1);
  for (int64_t k = 0; k < b->p->post_ops; ++k) {
    const byoc_post_op* op = &post_ops[k];
    const float* operand = op->operand < 0 ? NULL : (const float*)b->data[op->operand];
    if (operand != NULL && op->form == BYOC_PER_ELEMENT) {
      const byoc_strides* s = &op->strides;
      operand +=
          b->image * s->image + b->y * s->row + b->x * s->pixel + byoc_channel_offset(s, channel);
    }
    BYOC_NAME(apply)(op, operand, channel, lanes, 1, BYOC_DEPTHWISE_PIXELS, 1, b->pixels, o);
  }
}

/* Adds the products of one vector of channels. `inside`: whether no tap lies beside the source, and
   all lanes are channels. */
BYOC_INLINE void BYOC_NAME(depthwise_sums)(const int wide, const int stride, const int inside,
                                           BYOC_NAME(depthwise_source) s, int lanes,
                                           const float* src, const float* w, BYOC_VEC (*sums)[4]) {
  enum { kPixels = BYOC_DEPTHWISE_PIXELS };
  for (int64_t row = 0; row < s.rows; ++row) {
    BYOC_UNROLL
    for (int at = 0; at < (kPixels - 1) * stride + wide; ++at) {
      BYOC_VEC v = BYOC_NAME(set)(0.f);
      if (inside) {
        v = BYOC_NAME(load)(src + at * s.pixel);
      } else if (s.first + at >= 0 && s.first + at < s.width) {
        v = BYOC_NAME(load_some)(src + at * s.pixel, lanes);
      }
      BYOC_UNROLL
      for (int tap = 0; tap < wide; ++tap) {
        const int i = (at - tap) / stride;
        if (at < tap || (at - tap) % stride != 0 || i >= kPixels) continue;
        sums[i][0] += v * BYOC_NAME(load)(w + tap * BYOC_LANES);
      }
    }
    src += s.row;
    w += wide * BYOC_LANES;
  }
}

/* Vectors `first` to before `last` of a block. `inside`: see above. */
BYOC_INLINE void BYOC_NAME(depthwise_vectors)(const int wide, const int stride, const int inside,
                                              const BYOC_NAME(depthwise_block) * b, int64_t first,
                                              int64_t last) {
  enum { kPixels = BYOC_DEPTHWISE_PIXELS };
  const byoc_depthwise_params* p = b->p;
  /* Copies, which no store of a result can change. */
  const byoc_end end = *b->end;
  const BYOC_NAME(depthwise_source) s = b->source;
  const int64_t to_pixel = p->dst.pixel, channels = p->channels;
  const int pixels = b->pixels;
  const int64_t of_vector = byoc_depthwise_taps(p) * BYOC_LANES;
  const int64_t src_vector = byoc_depthwise_vector(&p->src, BYOC_LANES);
  const int64_t to_vector = byoc_depthwise_vector(&p->dst, BYOC_LANES);
  const float* src = b->src + first * src_vector;
  const float* w = b->weights + first * of_vector;
  const float* bias = p->has_bias ? (const float*)b->data[2] : NULL;
  float* to = b->to + first * to_vector;
  for (int64_t c = first * BYOC_LANES; c < last * BYOC_LANES; c += BYOC_LANES) {
    const int lanes = inside ? BYOC_LANES : (int)byoc_min(channels - c, BYOC_LANES);
    BYOC_VEC sums[kPixels][4], start = BYOC_NAME(set)(0.f);
    if (bias != NULL) start = BYOC_NAME(load_some)(bias + c, lanes);
    BYOC_UNROLL
    for (int i = 0; i < kPixels; ++i) sums[i][0] = start;
    BYOC_NAME(depthwise_sums)(wide, stride, inside, s, lanes, src, w, sums);
    if (end.fits) {
      BYOC_NAME(end_sums)(kPixels, 1, &end, sums);
    } else {
      BYOC_VEC flat[kPixels];
      BYOC_UNROLL
      for (int i = 0; i < kPixels; ++i) flat[i] = sums[i][0];
      BYOC_NAME(depthwise_finish)(b, c, lanes, flat);
      BYOC_UNROLL
      for (int i = 0; i < kPixels; ++i) sums[i][0] = flat[i];
    }
    BYOC_UNROLL
    for (int i = 0; i < kPixels; ++i) {
      if (inside || i < pixels) BYOC_NAME(store_some)(to + i * to_pixel, sums[i][0], lanes);
    }
    src += src_vector;
    to += to_vector;
    w += of_vector;
  }
}

/* A function for each width and stride: the sums of several would not find registers in one. */
#define BYOC_DEPTHWISE(wide, stride)                                                               \
  BYOC_NO_INLINE void BYOC_NAME(depthwise_##wide##_##stride)(const BYOC_NAME(depthwise_block) * b, \
                                                             int64_t first, int64_t last) {        \
    BYOC_NAME(depthwise_vectors)(wide, stride, 1, b, first, last);                                 \
  }                                                                                                \
  BYOC_NO_INLINE void BYOC_NAME(depthwise_edge_##wide##_##stride)(                                 \
      const BYOC_NAME(depthwise_block) * b, int64_t first, int64_t last) {                         \
    BYOC_NAME(depthwise_vectors)(wide, stride, 0, b, first, last);                                 \
  }
BYOC_DEPTHWISE(3, 1)
BYOC_DEPTHWISE(5, 1)
BYOC_DEPTHWISE(7, 1)
BYOC_DEPTHWISE(3, 2)
BYOC_DEPTHWISE(5, 2)
BYOC_DEPTHWISE(7, 2)
#undef BYOC_DEPTHWISE

BYOC_INLINE void BYOC_NAME(depthwise_run)(const BYOC_NAME(depthwise_block) * b, int64_t first,
                                          int64_t last) {
  const byoc_depthwise_params* p = b->p;
  const int64_t reach = (BYOC_DEPTHWISE_PIXELS - 1) * p->stride_x + p->kernel_width;
  const int whole = b->pixels == BYOC_DEPTHWISE_PIXELS && b->source.first >= 0 &&
                    b->source.first + reach <= p->width;
  const int64_t full = whole ? byoc_max(byoc_min(last, p->channels / BYOC_LANES), first) : first;
#define BYOC_CASE(wide, stride)                                 \
  case 8 * stride + wide:                                       \
    BYOC_NAME(depthwise_##wide##_##stride)(b, first, full);     \
    BYOC_NAME(depthwise_edge_##wide##_##stride)(b, full, last); \
    break;
  switch (8 * p->stride_x + p->kernel_width) {
    BYOC_CASE(3, 1)
    BYOC_CASE(5, 1)
    BYOC_CASE(7, 1)
    BYOC_CASE(3, 2)
    BYOC_CASE(5, 2)
    BYOC_CASE(7, 2)
    default:
      break;
  }
#undef BYOC_CASE
}

/* Vectors of channels of blocks of pixels, counted over all images, rows and blocks. */
BYOC_NO_INLINE void BYOC_NAME(depthwise_items)(const byoc_depthwise_params* p, int64_t first,
                                               int64_t last, void* const* data) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  const int64_t vectors = byoc_depthwise_vectors(p), blocks = byoc_depthwise_blocks(p);
  const float* src = (const float*)data[0];
  float* result = (float*)data[2 + p->has_bias + byoc_operands(post_ops, p->post_ops)];
  byoc_end end = byoc_end_of(post_ops, p->post_ops);
  end.fits = end.fits && end.added == NULL;
  for (int64_t item = first, after; item < last; item = after) {
    const int64_t block = item / vectors, row = block / blocks;
    const int64_t image = row / p->out_height, y = row % p->out_height;
    const int64_t x = block % blocks * BYOC_DEPTHWISE_PIXELS;
    const int64_t top = y * p->stride_y - p->pad_top, left = x * p->stride_x - p->pad_left;
    const int64_t above = top >= 0 ? 0 : (-top + p->dilation_y - 1) / p->dilation_y;
    const int64_t inside = p->height <= top ? 0 : (p->height - 1 - top) / p->dilation_y + 1;
    const int64_t rows = byoc_max(byoc_min(inside, p->kernel_height) - above, 0);
    const BYOC_NAME(depthwise_block)
        b = {p,
             &end,
             data,
             image,
             y,
             x,
             (int)byoc_min(p->out_width - x, BYOC_DEPTHWISE_PIXELS),
             {p->src.pixel, p->dilation_y * p->src.row, rows, left, p->width},
             src + image * p->src.image + (top + above * p->dilation_y) * p->src.row +
                 left * p->src.pixel,
             (const float*)data[1] + above * p->kernel_width * BYOC_LANES,
             result + image * p->dst.image + y * p->dst.row + x * p->dst.pixel};
    after = byoc_min((block + 1) * vectors, last);
    BYOC_NAME(depthwise_run)(&b, item - block * vectors, after - block * vectors);
  }
}

#include "byoc_vector_end.h"
