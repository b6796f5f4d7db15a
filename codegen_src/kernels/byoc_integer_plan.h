/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_integer.h, the memory that it takes, and its weights in 16 bits, which are
   made once. */
#ifndef BYOC_INTEGER_PLAN_H_
#define BYOC_INTEGER_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* Where numbers stand in the data that are given when the kernel runs: -1 for none. */
typedef struct byoc_integer_places {
  int64_t bias, src_scale, src_zero, weights_scale, weights_zero, dst_scale, dst_zero;
  int64_t scales, zeros; /* of the weights: 1, or one for each column */
  int64_t result;
} byoc_integer_places;

/* A convolution of images with channels innermost. A product of matrices is one with windows of one
   pixel, and a product of many matrices one with a group for each. A transposed convolution whose
   windows lie next to each other has a group for each pixel of these. The post-operations follow.
 */
typedef struct __attribute__((may_alias)) byoc_integer_params {
  byoc_convolution of;          /* the images of the result follow each other */
  int64_t src_group, dst_group; /* strides */
  int64_t across, dst_down;     /* groups next to each other, and between rows of these */
  int64_t next_column;          /* between the first columns of groups: 0 if groups share them */
  int64_t src_dtype, weights_dtype, dst_dtype; /* byoc_dtype */
  byoc_integer_places at;
  int64_t has_vnni;    /* the instruction set */
  int64_t is_winograd; /* windows of 3 x 3 pixels, next to each other: by tiles of 2 x 2 results */
  int64_t rows;        /* of a block: pixels, or tiles */
} byoc_integer_params;

enum {
  BYOC_INTEGER_TAPS = 64,      /* of a depthwise convolution, at most: their sum fits 16 bits */
  BYOC_INTEGER_RUN = 16,       /* pixels of a depthwise convolution at a time */
  BYOC_INTEGER_MOST_ROWS = 96, /* of a block */
  BYOC_INTEGER_PIXELS = 4,     /* of these at once: they share the weights */
  BYOC_FINISH_VECTORS = 8,     /* of results that are scaled at once */
  BYOC_INTEGER_POINTS = 16,    /* products of a tile of 2 x 2 results */
  BYOC_INTEGER_SLACK = 64      /* bytes behind the numbers of a thread */
};

/* Packed weights of a channel of a depthwise convolution. */
static inline int64_t byoc_integer_tap_numbers(int64_t taps) { return 2 * (taps + 1); }

static inline int byoc_is_depthwise(const byoc_convolution* c) {
  return c->groups > 1 && c->channels == 1 && c->outputs == 1;
}

/* The numbers of a pixel's window, whole pairs of neighbours, or of a tile at one of its points,
   whole vectors, in 16 bits. */
static inline int64_t byoc_integer_depth(const byoc_integer_params* p) {
  return p->is_winograd ? byoc_round_up(p->of.channels, byoc_panel(p->of.isa))
                        : byoc_round_up(byoc_taps(&p->of), 2);
}

static inline size_t byoc_integer_packed_bytes(const byoc_integer_params* p) {
  const int64_t panel = byoc_panel(p->of.isa);
  const int64_t numbers = (p->is_winograd ? BYOC_INTEGER_POINTS : 1) * byoc_integer_depth(p);
  return (size_t)(byoc_is_depthwise(&p->of)
                      ? byoc_round_up(p->of.groups, panel) *
                            byoc_integer_tap_numbers(byoc_taps(&p->of))
                      : p->of.groups * byoc_round_up(p->of.outputs, panel) * numbers) *
         2;
}

/* From the first element of a group's source to the end of the last one. */
static inline int64_t byoc_integer_extent(const byoc_integer_params* p) {
  return (p->of.images - 1) * p->of.src.image + (p->of.height - 1) * p->of.src.row +
         (p->of.width - 1) * p->of.src.pixel + p->of.channels;
}

static inline int64_t byoc_integer_tiles(const byoc_integer_params* p) {
  return p->of.images * ((p->of.out_height + 1) / 2) * ((p->of.out_width + 1) / 2);
}

/* Rows of a block that takes no more than so many bytes. */
static inline int64_t byoc_integer_block(const byoc_integer_params* p, int64_t block_bytes) {
  const int64_t bytes = 2 * byoc_integer_depth(p) * (p->is_winograd ? BYOC_INTEGER_POINTS : 1);
  const int64_t rows = block_bytes / bytes / 12 * 12;
  return byoc_max(12, byoc_min(rows, BYOC_INTEGER_MOST_ROWS));
}

/* Of one thread: numbers in 16 bits (or a line of zero points), sums of each row, sums of a panel,
   and those of tiles as pixels. */
static inline int64_t byoc_integer_numbers_bytes(const byoc_integer_params* p) {
  const int64_t points = p->is_winograd ? BYOC_INTEGER_POINTS : 1;
  const int64_t bytes = byoc_is_depthwise(&p->of) ? byoc_round_up(p->of.groups, 64)
                                                  : points * p->rows * byoc_integer_depth(p) * 2;
  return byoc_round_up(bytes + BYOC_INTEGER_SLACK, 64);
}
static inline int64_t byoc_integer_thread_bytes(const byoc_integer_params* p) {
  const int64_t panel = byoc_panel(p->of.isa);
  const int64_t sums = p->is_winograd ? BYOC_INTEGER_POINTS + 4 : 1;
  return byoc_integer_numbers_bytes(p) + byoc_round_up(p->rows * 4, 64) +
         sums * p->rows * panel * 4;
}

static inline int16_t byoc_integer_weight(const byoc_integer_params* p, const uint8_t* weights,
                                          int64_t at) {
  return p->weights_dtype == BYOC_S8 ? (int16_t)(int8_t)weights[at] : (int16_t)weights[at];
}

/* Of the sum of all taps, and of each tap, the channels of a panel twice: the even ones with zeros
   between them, and the odd ones. */
static inline void byoc_integer_pack_depthwise(const byoc_integer_params* p, const uint8_t* weights,
                                               int16_t* packed) {
  const byoc_convolution* c = &p->of;
  const int64_t panel = byoc_panel(c->isa), taps = byoc_taps(c);
  const int64_t of_panel = panel * byoc_integer_tap_numbers(taps);
  memset(packed, 0, byoc_integer_packed_bytes(p));
  for (int64_t channel = 0; channel < c->groups; ++channel) {
    int16_t* to = packed + channel / panel * of_panel + channel % 2 * panel + channel % panel;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int16_t weight =
          byoc_integer_weight(p, weights, channel * c->weights.group + tap * c->weights.tap);
      to[0] = (int16_t)(to[0] + weight);
      to[(tap + 1) * 2 * panel] = weight;
    }
  }
}

/* Point (i, j) of a window g of 3 x 3 weights: 4 times what Winograd's F(2 x 2, 3 x 3) has there,
   so that it is whole. */
static inline int16_t byoc_integer_point(const int16_t g[9], int64_t i, int64_t j) {
  static const int8_t kFactors[4][3] = {{2, 0, 0}, {1, 1, 1}, {1, -1, 1}, {0, 0, 2}};
  int32_t sum = 0;
  for (int64_t y = 0; y < 3; ++y) {
    for (int64_t x = 0; x < 3; ++x) sum += kFactors[i][y] * g[y * 3 + x] * kFactors[j][x];
  }
  return (int16_t)sum;
}

/* A panel: point, pairs of channels, column, number of a pair. */
static inline void byoc_integer_pack_tiles(const byoc_integer_params* p, const uint8_t* weights,
                                           int64_t first, int16_t* to) {
  const byoc_convolution* of = &p->of;
  const byoc_weight_strides* s = &of->weights;
  const int64_t panel = byoc_panel(of->isa), depth = byoc_integer_depth(p);
  for (int64_t c = 0; c < depth; ++c) {
    for (int64_t n = 0; n < panel; ++n) {
      int16_t window[9] = {0};
      for (int64_t t = 0; c < of->channels && first + n < of->outputs && t < 9; ++t) {
        window[t] =
            byoc_integer_weight(p, weights, (first + n) * s->output + c * s->channel + t * s->tap);
      }
      for (int64_t point = 0; point < BYOC_INTEGER_POINTS; ++point) {
        to[((point * depth / 2 + c / 2) * panel + n) * 2 + c % 2] =
            byoc_integer_point(window, point / 4, point % 4);
      }
    }
  }
}

/* Numbers of `count` columns, `stride` apart: one from `first`, its neighbour along the depth from
   `second` (NULL: zero). */
static inline __attribute__((always_inline)) void byoc_integer_pack_pair(
    const uint8_t* first, const uint8_t* second, int64_t stride, int64_t count, const int is_signed,
    int16_t* to) {
  const int32_t flip = is_signed ? 128 : 0;
  for (int64_t n = 0; n < count; ++n) {
    to[2 * n] = (int16_t)((first[n * stride] ^ flip) - flip);
    to[2 * n + 1] = (int16_t)(second == NULL ? 0 : (second[n * stride] ^ flip) - flip);
  }
}

/* A panel: pairs of the depth (rows and pixels of the window, channels), column, number of a pair.
   `weights`: of its first column. */
static inline void byoc_integer_pack_panel(const byoc_integer_params* p, const uint8_t* weights,
                                           int64_t columns, int16_t* to) {
  const byoc_convolution* of = &p->of;
  const byoc_weight_strides* s = &of->weights;
  const int is_signed = p->weights_dtype == BYOC_S8;
  const int64_t panel = byoc_panel(of->isa), depth = byoc_taps(of);
  if (columns < panel) memset(to, 0, (size_t)(byoc_integer_depth(p) * panel) * 2);
  for (int64_t k = 0; k < depth; k += 2, to += 2 * panel) {
    const uint8_t* at[2] = {NULL, NULL};
    for (int64_t i = 0; i < 2 && k + i < depth; ++i) {
      const int64_t c = (k + i) % of->channels, tap = (k + i) / of->channels;
      at[i] = weights + c * s->channel + tap * s->tap;
    }
    if (s->output == 1 && is_signed) {
      byoc_integer_pack_pair(at[0], at[1], 1, columns, 1, to);
    } else if (s->output == 1) {
      byoc_integer_pack_pair(at[0], at[1], 1, columns, 0, to);
    } else {
      byoc_integer_pack_pair(at[0], at[1], s->output, columns, is_signed, to);
    }
  }
}

BYOC_FUNCTION void byoc_integer_pack_part(const byoc_integer_params* p, void* const* data,
                                          int64_t part, int64_t parts) {
  const uint8_t* weights = (const uint8_t*)data[0];
  int16_t* packed = (int16_t*)data[1];
  const byoc_convolution* of = &p->of;
  const int64_t panel = byoc_panel(of->isa), panels = (of->outputs + panel - 1) / panel;
  const int64_t all = of->groups * panels;
  const int64_t of_panel =
      (p->is_winograd ? BYOC_INTEGER_POINTS : 1) * byoc_integer_depth(p) * panel;
  if (byoc_is_depthwise(of)) { /* on one thread */
    byoc_integer_pack_depthwise(p, weights, packed);
    return;
  }
  for (int64_t b = all * part / parts; b < all * (part + 1) / parts; ++b) {
    const int64_t group = b / panels, first = b % panels * panel;
    int16_t* to = packed + b * of_panel;
    if (p->is_winograd) {
      byoc_integer_pack_tiles(p, weights, first, to);
      continue;
    }
    byoc_integer_pack_panel(p, weights + group * of->weights.group + first * of->weights.output,
                            byoc_min(panel, of->outputs - first), to);
  }
}

/* params: as of byoc_integer. data: the weights, and what is made of them: the panels of each
   group. */
BYOC_KERNEL(integer_pack, byoc_integer_params, byoc_is_depthwise(&p->of) ? 1 : threads)

#endif /* BYOC_INTEGER_PLAN_H_ */
