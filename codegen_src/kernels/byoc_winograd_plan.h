/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_winograd.h and byoc_split_winograd.h, and how much memory they take. */
#ifndef BYOC_WINOGRAD_PLAN_H_
#define BYOC_WINOGRAD_PLAN_H_

#include "byoc_split_plan.h"

/* The parameters of the kernel; the post-operations follow them. Kernels and strides are square,
   and leave no holes. */
typedef struct __attribute__((may_alias)) byoc_winograd_params {
  byoc_convolution of;
  int64_t m;    /* results per tile and axis: 4 or 2 */
  int64_t late; /* F(4x4, 3x3): weights are packed as they are, and each call transforms them */
  int64_t over_outputs;  /* threads share the transformed source and divide the outputs */
  int64_t tiles_at_once; /* over tiles: of a block */
  int64_t outputs_at_once;
} byoc_winograd_params;

/* Weights per axis that a phase has, and the pixels of a tile and axis that it reads. */
static inline int64_t byoc_winograd_taps(const byoc_winograd_params* w) {
  return (w->of.kernel_width + w->of.stride_x - 1) / w->of.stride_x;
}
static inline int64_t byoc_winograd_side(const byoc_winograd_params* w) {
  return w->m + byoc_winograd_taps(w) - 1;
}
static inline int64_t byoc_winograd_points(const byoc_winograd_params* w) {
  return byoc_winograd_side(w) * byoc_winograd_side(w);
}

/* The length of the products at a point: the channels of all phases. */
static inline int64_t byoc_winograd_terms(const byoc_winograd_params* w) {
  return w->of.channels * w->of.stride_x * w->of.stride_x;
}

static inline int64_t byoc_winograd_tiles(const byoc_winograd_params* w) {
  return w->of.images * ((w->of.out_height + w->m - 1) / w->m) *
         ((w->of.out_width + w->m - 1) / w->m);
}

/* Bytes of packed weights that a call may still find in the second-level cache. Others are fetched
   ahead. */
enum { BYOC_NEAR_WEIGHTS = 1 << 16 };

/* Rows of V and M are a little longer than what they hold, so that they do not fall on the same
   lines of the cache. */
enum { BYOC_ROW_GAP = 16 };

static inline int64_t byoc_row_floats(int64_t used) {
  return byoc_round_up(used, BYOC_CACHE_LINE_FLOATS) + BYOC_ROW_GAP;
}

/* Floats from one point of V or M to the next. An odd number of lines, so that the points of a tile
   do not fall on the same lines of the cache. */
static inline int64_t byoc_point_floats(int64_t rows, int64_t row) {
  return (rows * row / BYOC_CACHE_LINE_FLOATS | 1) * BYOC_CACHE_LINE_FLOATS;
}

/* Channels of a panel whose weights are transformed at once, where they are transformed by each
   call; the distance of their points, which do not begin on the same lines of a cache; and the room
   that they take. */
static inline int64_t byoc_winograd_depth(int64_t isa) { return isa == BYOC_AVX512 ? 64 : 128; }
static inline int64_t byoc_winograd_step(int64_t isa) {
  return byoc_winograd_depth(isa) * byoc_panel(isa) + BYOC_CACHE_LINE_FLOATS;
}
static inline int64_t byoc_winograd_late_floats(const byoc_winograd_params* w) {
  return w->late ? 36 * byoc_winograd_step(w->of.isa) : 0;
}

/* Bytes of V of all tiles. */
static inline int64_t byoc_winograd_all_source_bytes(const byoc_winograd_params* w) {
  return byoc_winograd_points(w) * 4 * byoc_winograd_tiles(w) *
         byoc_row_floats(byoc_winograd_terms(w));
}

/* Floats of the packed weights of a group. */
static inline int64_t byoc_winograd_packed_floats(const byoc_winograd_params* w) {
  return (w->late ? 9 : byoc_winograd_points(w)) * byoc_winograd_terms(w) *
         byoc_round_up(w->of.outputs, byoc_panel(w->of.isa));
}
static inline size_t byoc_winograd_packed_bytes(const byoc_winograd_params* w) {
  return (size_t)(w->of.groups * byoc_winograd_packed_floats(w)) * 4;
}

static inline int64_t byoc_winograd_source_floats(const byoc_winograd_params* w) {
  const int64_t rows = w->over_outputs ? byoc_winograd_tiles(w) : w->tiles_at_once;
  return byoc_winograd_points(w) * byoc_point_floats(rows, byoc_row_floats(byoc_winograd_terms(w)));
}

static inline int64_t byoc_winograd_product_floats(const byoc_winograd_params* w) {
  const int64_t rows = w->over_outputs ? byoc_winograd_tiles(w) : w->tiles_at_once;
  const int64_t columns =
      w->over_outputs ? w->outputs_at_once : byoc_round_up(w->of.outputs, byoc_panel(w->of.isa));
  return byoc_winograd_points(w) * byoc_point_floats(rows, byoc_row_floats(columns));
}

static inline size_t byoc_winograd_scratch_bytes(const byoc_winograd_params* w) {
  const int64_t sources = w->over_outputs ? 1 : w->of.threads;
  return (size_t)(sources * byoc_winograd_source_floats(w) +
                  w->of.threads *
                      (byoc_winograd_product_floats(w) + byoc_winograd_late_floats(w))) *
         4;
}

enum {
  BYOC_POINTS = 36,        /* of a tile of 4 x 4 results */
  BYOC_POINT_PARTS = 3,    /* bfloat16 of a number */
  BYOC_POINT_PRODUCTS = 6, /* of the nine of two numbers */
  BYOC_POINT_GAP = 16 /* floats between points, which must not fall on the same lines of a cache */
};

/* The product at one point, whose parameters are those of a convolution 1x1. */
static inline byoc_split_params byoc_split_winograd_product(const byoc_winograd_params* w) {
  enum { kFewChunks = 4 }; /* rows of so many do not fall on the same lines of the cache */
  byoc_split_params p;
  memset(&p, 0, sizeof(p));
  p.parts = BYOC_POINT_PARTS;
  p.of.channels = w->of.channels;
  p.of.outputs = w->of.outputs;
  p.of.kernel_height = p.of.kernel_width = p.taps = 1;
  p.of.stride_y = p.of.stride_x = p.of.dilation_y = p.of.dilation_x = 1;
  p.filled = byoc_round_up(w->of.channels, BYOC_TILE_DEPTH);
  p.chunks = p.filled / BYOC_TILE_DEPTH;
  p.depth = p.chunks <= kFewChunks ? p.filled : byoc_split_distance(p.chunks);
  return p;
}

static inline size_t byoc_split_winograd_packed_bytes(const byoc_winograd_params* w) {
  const byoc_split_params p = byoc_split_winograd_product(w);
  return BYOC_POINTS * byoc_split_packed_bytes(&p);
}

static inline int64_t byoc_split_winograd_panels(const byoc_winograd_params* w) {
  return (w->of.outputs + BYOC_SPLIT_PANEL - 1) / BYOC_SPLIT_PANEL;
}

/* Rows of M in memory, which whole tiles of AMX write. */
static inline int64_t byoc_split_winograd_rows(int64_t tiles) {
  return byoc_round_up(tiles, BYOC_TILE_ROWS);
}

/* Floats of V at one point; of M for some panels of outputs; and of the parts of V at a point. */
static inline int64_t byoc_split_winograd_source(const byoc_winograd_params* w, int64_t tiles) {
  return tiles * byoc_round_up(w->of.channels, BYOC_AVX512_LANES) + BYOC_POINT_GAP;
}
static inline int64_t byoc_split_winograd_sums(int64_t tiles, int64_t panels) {
  return byoc_split_winograd_rows(tiles) * panels * BYOC_SPLIT_PANEL + BYOC_POINT_GAP;
}
static inline int64_t byoc_split_winograd_parts(const byoc_winograd_params* w, int64_t tiles) {
  const byoc_split_params p = byoc_split_winograd_product(w);
  return byoc_split_winograd_rows(tiles) * p.depth * BYOC_POINT_PARTS / 2;
}

/* A thread that has a block of tiles for itself writes the sums of a point over the V of the point
   before it, so that a point takes as much as the larger of both; and all that it needs. */
static inline int64_t byoc_split_winograd_slot(const byoc_winograd_params* w, int64_t tiles) {
  return byoc_max(byoc_split_winograd_source(w, tiles),
                  byoc_split_winograd_sums(tiles, byoc_split_winograd_panels(w)));
}
static inline int64_t byoc_split_winograd_block_floats(const byoc_winograd_params* w,
                                                       int64_t tiles) {
  return (BYOC_POINTS + 1) * byoc_split_winograd_slot(w, tiles) +
         byoc_split_winograd_parts(w, tiles);
}
/* What a thread needs that has some outputs of all tiles, beside the V that all threads share. */
static inline int64_t byoc_split_winograd_group_floats(const byoc_winograd_params* w) {
  const int64_t tiles = byoc_winograd_tiles(w), panels = w->outputs_at_once / BYOC_SPLIT_PANEL;
  return BYOC_POINTS * byoc_split_winograd_sums(tiles, panels) +
         byoc_split_winograd_parts(w, tiles);
}
static inline size_t byoc_split_winograd_scratch_bytes(const byoc_winograd_params* w) {
  const int64_t tiles = byoc_winograd_tiles(w);
  if (!w->over_outputs) {
    return (size_t)(w->of.threads * byoc_split_winograd_block_floats(w, w->tiles_at_once)) * 4;
  }
  return (size_t)(BYOC_POINTS * byoc_split_winograd_source(w, tiles) +
                  w->of.threads * byoc_split_winograd_group_floats(w)) *
         4;
}

#endif /* BYOC_WINOGRAD_PLAN_H_ */
