/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_split_winograd.h, which are those of byoc_winograd.h: how the work is
   divided, and how much memory it takes. */
#ifndef BYOC_SPLIT_WINOGRAD_PLAN_H_
#define BYOC_SPLIT_WINOGRAD_PLAN_H_

#include "byoc_split_plan.h"
#include "byoc_winograd_plan.h"

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
  p.channels = w->channels;
  p.outputs = w->outputs;
  p.kernel_height = p.kernel_width = p.taps = 1;
  p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
  p.filled = byoc_round_up(w->channels, BYOC_TILE_DEPTH);
  p.chunks = p.filled / BYOC_TILE_DEPTH;
  p.depth = p.chunks <= kFewChunks ? p.filled : byoc_split_distance(p.chunks);
  return p;
}

static inline size_t byoc_split_winograd_packed_bytes(const byoc_winograd_params* w) {
  const byoc_split_params p = byoc_split_winograd_product(w);
  return BYOC_POINTS * byoc_split_packed_bytes(&p);
}

static inline int64_t byoc_split_winograd_panels(const byoc_winograd_params* w) {
  return (w->outputs + BYOC_SPLIT_PANEL - 1) / BYOC_SPLIT_PANEL;
}

/* Rows of M in memory, which whole tiles of AMX write. */
static inline int64_t byoc_split_winograd_rows(int64_t tiles) {
  return byoc_round_up(tiles, BYOC_TILE_ROWS);
}

/* Floats of V at one point; of M for some panels of outputs; and of the parts of V at a point. */
static inline int64_t byoc_split_winograd_source(const byoc_winograd_params* w, int64_t tiles) {
  return tiles * byoc_round_up(w->channels, BYOC_AVX512_LANES) + BYOC_POINT_GAP;
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
    return (size_t)(w->threads * byoc_split_winograd_block_floats(w, w->tiles_at_once)) * 4;
  }
  return (size_t)(BYOC_POINTS * byoc_split_winograd_source(w, tiles) +
                  w->threads * byoc_split_winograd_group_floats(w)) *
         4;
}

/* What one thread does; its time is counted in bytes that come from beyond its second-level cache,
   for which AMX waits. */
typedef struct byoc_split_winograd_work {
  int64_t products; /* multiplications and additions of parts */
  int64_t weights;  /* bytes of them that are read, or of V where it is only read */
  int64_t moved;    /* bytes of V and M that do not stay in the cache: written, and read */
} byoc_split_winograd_work;

static inline int64_t byoc_split_winograd_time(const byoc_split_winograd_work* work) {
  /* Products in the time of a byte, on a Granite Rapids at 3.3 GHz; and what V and M cost. */
  enum { kPerByte = 48, kMoved = 4 };
  return work->products / kPerByte + work->weights + kMoved * work->moved;
}

/* Rows of a block, as many as its products take time: a tile of rows alone takes seven tenths of
   the time of two. */
static inline int64_t byoc_split_winograd_slow_rows(int64_t tiles) {
  const int64_t rows = byoc_split_winograd_rows(tiles);
  return rows + (rows % BYOC_SPLIT_ROWS == 0 ? 0 : 12);
}

/* Divides the work among threads: blocks of tiles, or groups of outputs behind one transformed
   source, so that the weights are read once. */
static inline void byoc_split_winograd_plan(byoc_winograd_params* w, int threads,
                                            int64_t cache_bytes) {
  /* Weights in the second-level cache come four times as fast as those beyond it. */
  enum { kBytes = BYOC_POINT_PARTS * 2, kMostPanels = 4, kNearer = 4 };
  const int64_t tiles = byoc_winograd_tiles(w), panels = byoc_split_winograd_panels(w);
  const int64_t weights = (int64_t)byoc_split_winograd_packed_bytes(w);
  int64_t least = -1;
  w->threads = threads;
  for (int64_t most = BYOC_TILE_ROWS;; most += BYOC_TILE_ROWS) {
    const int64_t blocks = byoc_round_up((tiles + most - 1) / most, threads);
    const int64_t at_once = (tiles + blocks - 1) / blocks, own = blocks / threads;
    const int64_t used = byoc_split_winograd_block_floats(w, at_once) * 4;
    byoc_split_winograd_work work;
    work.products =
        own * byoc_split_winograd_slow_rows(at_once) * (weights / kBytes) * BYOC_POINT_PRODUCTS;
    work.weights = weights * own / (used + weights <= cache_bytes ? kNearer : 1);
    work.moved = own * byoc_max(used - cache_bytes, 0);
    const int64_t time = byoc_split_winograd_time(&work);
    if (least < 0 || time < least) {
      least = time;
      w->tiles_at_once = at_once;
    }
    if (most * threads >= tiles) break;
  }
  const int64_t own = (panels + threads - 1) / threads, group = byoc_min(own, kMostPanels);
  const int64_t groups = (own + group - 1) / group;
  const int64_t source = BYOC_POINTS * byoc_split_winograd_source(w, tiles) * 4;
  w->outputs_at_once = group * BYOC_SPLIT_PANEL;
  byoc_split_winograd_work work;
  work.products = byoc_split_winograd_slow_rows(tiles) * (weights / kBytes) * BYOC_POINT_PRODUCTS /
                  panels * own;
  work.weights = weights / panels * own + source * groups;
  work.moved = source + groups * byoc_max(byoc_split_winograd_group_floats(w) * 4 - cache_bytes, 0);
  w->over_outputs = panels >= threads && threads > 1 && byoc_split_winograd_time(&work) < least;
}

#endif /* BYOC_SPLIT_WINOGRAD_PLAN_H_ */
