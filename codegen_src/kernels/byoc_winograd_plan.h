/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_winograd.h: how the work is divided, and how much memory it takes. */
#ifndef BYOC_WINOGRAD_PLAN_H_
#define BYOC_WINOGRAD_PLAN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. */
typedef struct __attribute__((may_alias)) byoc_winograd_params {
  int64_t isa; /* byoc_isa */
  int64_t m;   /* results per tile and axis: 4 or 2 */
  int64_t images, channels, height, width;
  int64_t outputs, out_height, out_width;
  int64_t pad_top, pad_left;
  byoc_strides src, dst;
  int64_t has_bias, post_ops;
  /* Set by byoc_winograd_plan: */
  int64_t threads;       /* that there is scratch memory for */
  int64_t over_outputs;  /* threads share the transformed source and divide the outputs */
  int64_t tiles_at_once; /* over tiles: of a block */
  int64_t outputs_at_once;
} byoc_winograd_params;

static inline int64_t byoc_winograd_tiles(const byoc_winograd_params* w) {
  return w->images * ((w->out_height + w->m - 1) / w->m) * ((w->out_width + w->m - 1) / w->m);
}

/* Bytes of packed weights that rarely stay in the last cache between two calls. */
enum { BYOC_MANY_WEIGHTS = 16 << 20 };
/* And of those that stay in the second-level cache during a call, so that fetching them ahead only
   costs time. */
enum { BYOC_NEAR_WEIGHTS = 1 << 20 };

/* Rows of V and M are a little longer than what they hold, so that they do not fall on the same
   lines of the cache. */
enum { BYOC_ROW_GAP = 16 };

static inline int64_t byoc_row_floats(int64_t used) {
  return byoc_round_up(used, BYOC_CACHE_LINE_FLOATS) + BYOC_ROW_GAP;
}

/* Divides the work among threads: blocks of tiles whose V and M stay in the second-level cache, or,
   where the weights are many and the tiles few, groups of outputs behind one transformed source, so
   that the weights are read once. */
static inline void byoc_winograd_plan(byoc_winograd_params* w, int threads, int64_t cache_bytes) {
  const int64_t points = (int64_t)(w->m + 2) * (w->m + 2);
  const int64_t rows = byoc_rows(w->isa);
  const int64_t panel = byoc_panel(w->isa);
  const int64_t tiles = byoc_winograd_tiles(w);
  w->threads = threads;
  const int64_t outputs = byoc_round_up(w->outputs, panel);
  const int64_t weights = points * 4 * w->channels * outputs;

  /* V and M of a block, beside the weights where these fit, too. */
  const int64_t tile_bytes = points * 4 * (byoc_row_floats(w->channels) + byoc_row_floats(outputs));
  const int64_t room = cache_bytes * 7 / 8 - (weights <= cache_bytes * 5 / 8 ? weights : 0);
  int64_t at_once = byoc_max(1, room / tile_bytes / rows) * rows;
  int64_t blocks = byoc_round_up((tiles + at_once - 1) / at_once, threads);
  blocks = byoc_min(blocks, tiles);
  w->tiles_at_once = (tiles + blocks - 1) / blocks;
  blocks = (tiles + w->tiles_at_once - 1) / w->tiles_at_once;

  int64_t group = byoc_max(panel, byoc_min(4 * panel, outputs / threads / panel * panel));
  const int64_t groups = (outputs + group - 1) / group;
  w->outputs_at_once = group;
  /* Bytes that come from beyond the second-level cache. Measured: V and M, which are written as
     well, cost four times as much per byte as the weights, and the weights twice as much once they
     do not fit into the last cache either. */
  const int64_t source = points * 4 * tiles * byoc_row_floats(w->channels);
  const int64_t product = points * 4 * tiles * byoc_row_floats(group);
  const int64_t moved =
      source * (1 + groups) + (product > cache_bytes / 2 ? 2 * points * 4 * tiles * outputs : 0);
  const int64_t by_tiles =
      weights <= cache_bytes * 3 / 4 ? 0 : weights * blocks * (weights > BYOC_MANY_WEIGHTS ? 2 : 1);
  const int64_t by_outputs = weights + 4 * moved;
  w->over_outputs = groups >= threads && by_outputs < by_tiles;
}

static inline size_t byoc_winograd_packed_bytes(const byoc_winograd_params* w) {
  const int64_t points = (int64_t)(w->m + 2) * (w->m + 2);
  return (size_t)(points * w->channels * byoc_round_up(w->outputs, byoc_panel(w->isa))) * 4;
}

static inline int64_t byoc_winograd_source_floats(const byoc_winograd_params* w) {
  const int64_t rows = w->over_outputs ? byoc_winograd_tiles(w) : w->tiles_at_once;
  return (w->m + 2) * (w->m + 2) * rows * byoc_row_floats(w->channels);
}

static inline int64_t byoc_winograd_product_floats(const byoc_winograd_params* w) {
  const int64_t rows = w->over_outputs ? byoc_winograd_tiles(w) : w->tiles_at_once;
  const int64_t columns =
      w->over_outputs ? w->outputs_at_once : byoc_round_up(w->outputs, byoc_panel(w->isa));
  return (w->m + 2) * (w->m + 2) * rows * byoc_row_floats(columns);
}

static inline size_t byoc_winograd_scratch_bytes(const byoc_winograd_params* w) {
  const int64_t sources = w->over_outputs ? 1 : w->threads;
  return (size_t)(sources * byoc_winograd_source_floats(w) +
                  w->threads * byoc_winograd_product_floats(w)) *
         4;
}

#endif /* BYOC_WINOGRAD_PLAN_H_ */
