/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_winograd.h and byoc_split_winograd.h: how the work is divided, and how
   much memory it takes. */
#ifndef BYOC_WINOGRAD_PLAN_H_
#define BYOC_WINOGRAD_PLAN_H_

#include "byoc_split_plan.h"

/* The parameters of the kernel; the post-operations follow them. Kernels and strides are square,
   and leave no holes. */
typedef struct __attribute__((may_alias)) byoc_winograd_params {
  byoc_convolution of;
  int64_t m;    /* results per tile and axis: 4 or 2 */
  int64_t late; /* F(4x4, 3x3): weights are packed as they are, and each call transforms them */
  /* Set by byoc_winograd_plan, as the threads are: */
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

/* What a plan knows of the caches of a machine: bytes, and what it costs to miss them. */
typedef struct byoc_caches {
  int64_t near_bytes; /* of the cache of a core that blocks are to stay in */
  int64_t last_bytes; /* more weights, or more of a source, rarely stay in any cache */
  int64_t wait_bytes; /* read while threads wait for what they have transformed together */
  /* Of V and M of a block: alone in the near cache, or beside weights that do not stay there;
     beside weights that stay; and where it transforms them. */
  int64_t large_block, small_block, late_block;
  int64_t few_weights, many_weights; /* fewer, or more, than stay beside a block */
  int64_t stays;                     /* of weights or of V, which are only read */
  int64_t written;                   /* of M, which is written as well */
  /* Per byte, as many times as a byte of weights from beyond the near cache: V and M, the same
     where they do not stay in the last cache, weights that do not, and the points of weights that
     are transformed. */
  double moved, moved_far, weights_far, late;
  /* Products of AMX in the time of such a byte, what V and M cost beside it, and how many times as
     fast weights in the near cache come. */
  double products, moved_beside, nearer;
} byoc_caches;

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

/* Bytes of V of all tiles, and whether they stay in the second-level cache while the groups of
   outputs read them. */
static inline int64_t byoc_winograd_all_source_bytes(const byoc_winograd_params* w) {
  return byoc_winograd_points(w) * 4 * byoc_winograd_tiles(w) *
         byoc_row_floats(byoc_winograd_terms(w));
}
static inline int byoc_winograd_source_stays(const byoc_winograd_params* w,
                                             const byoc_caches* caches) {
  return byoc_winograd_all_source_bytes(w) <= caches->stays;
}

/* Divides the work among threads: blocks of tiles whose V and M stay in the second-level cache, or,
   where the weights are many and the tiles few, groups of outputs behind one transformed source, so
   that the weights are read once. */
static inline void byoc_winograd_plan(byoc_winograd_params* w, int threads,
                                      const byoc_caches* caches) {
  const int64_t points = byoc_winograd_points(w), terms = byoc_winograd_terms(w);
  const int64_t panel = byoc_panel(w->of.isa);
  const int64_t tiles = byoc_winograd_tiles(w);
  w->of.threads = threads;
  const int64_t outputs = byoc_round_up(w->of.outputs, panel);
  const int64_t weights = points * 4 * terms * outputs;

  /* Each block reads all weights, or transforms them. Where weights do not stay beside V and M, few
     blocks are worth more than a V and M that stay; so is one block for each thread. */
  const int64_t tile_bytes = points * 4 * (byoc_row_floats(terms) + byoc_row_floats(outputs));
  const int64_t large = caches->large_block;
  const int alone = tiles * tile_bytes <= threads * large && weights > caches->few_weights;
  const int64_t room = w->late                                   ? caches->late_block
                       : alone || weights > caches->many_weights ? large
                                                                 : caches->small_block;
  const int64_t at_once = byoc_max(byoc_rows(w->of.isa), room / tile_bytes);
  int64_t blocks = byoc_round_up((tiles + at_once - 1) / at_once, threads);
  blocks = byoc_min(blocks, tiles);
  w->tiles_at_once = (tiles + blocks - 1) / blocks;
  blocks = (tiles + w->tiles_at_once - 1) / w->tiles_at_once;

  /* As many panels for each thread, in groups of four at most. */
  const int64_t panels = outputs / panel, own = (panels + threads - 1) / threads;
  const int64_t of_thread = (own + 3) / 4, group = (own + of_thread - 1) / of_thread * panel;
  const int64_t groups = byoc_min(of_thread * threads, panels);
  w->outputs_at_once = group;
  /* Bytes that come from beyond the near cache, as many times as they cost. */
  const int64_t source = byoc_winograd_all_source_bytes(w);
  const int64_t product = points * 4 * tiles * byoc_row_floats(group);
  const int64_t times =
      byoc_winograd_source_stays(w, caches) ? threads : 1 + (w->late ? panels : groups);
  const int64_t moved =
      source * times + (product > caches->written ? 2 * points * 4 * tiles * outputs : 0);
  const int64_t each =
      w->late ? weights * 9 / points + (int64_t)(caches->late * (double)weights) : weights;
  const double read_again = weights > caches->last_bytes ? caches->weights_far : 1;
  const int64_t by_tiles =
      !w->late && weights <= caches->stays ? 0 : (int64_t)(read_again * (double)(each * blocks));
  const double moved_again = source > caches->last_bytes ? caches->moved_far : caches->moved;
  const int64_t by_outputs = caches->wait_bytes + each + (int64_t)(moved_again * (double)moved);
  w->over_outputs = groups >= threads && by_outputs < by_tiles;
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

/* What one thread does; its time is counted in bytes that come from beyond its second-level cache,
   for which AMX waits. */
typedef struct byoc_split_winograd_work {
  int64_t products; /* multiplications and additions of parts */
  int64_t weights;  /* bytes of them that are read, or of V where it is only read */
  int64_t moved;    /* bytes of V and M that do not stay in the cache: written, and read */
} byoc_split_winograd_work;

static inline int64_t byoc_split_winograd_time(const byoc_split_winograd_work* work,
                                               const byoc_caches* caches) {
  return (int64_t)((double)work->products / caches->products) + work->weights +
         (int64_t)(caches->moved_beside * (double)work->moved);
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
                                            const byoc_caches* caches) {
  const int64_t cache_bytes = caches->near_bytes;
  enum { kBytes = BYOC_POINT_PARTS * 2, kMostPanels = 4 };
  const int64_t tiles = byoc_winograd_tiles(w), panels = byoc_split_winograd_panels(w);
  const int64_t weights = (int64_t)byoc_split_winograd_packed_bytes(w);
  int64_t least = -1;
  w->of.threads = threads;
  for (int64_t most = BYOC_TILE_ROWS;; most += BYOC_TILE_ROWS) {
    const int64_t blocks = byoc_round_up((tiles + most - 1) / most, threads);
    const int64_t at_once = (tiles + blocks - 1) / blocks, own = blocks / threads;
    const int64_t used = byoc_split_winograd_block_floats(w, at_once) * 4;
    byoc_split_winograd_work work;
    work.products =
        own * byoc_split_winograd_slow_rows(at_once) * (weights / kBytes) * BYOC_POINT_PRODUCTS;
    const double times = used + weights <= cache_bytes ? caches->nearer : 1;
    work.weights = (int64_t)((double)(weights * own) / times);
    work.moved = own * byoc_max(used - cache_bytes, 0);
    const int64_t time = byoc_split_winograd_time(&work, caches);
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
  w->over_outputs =
      panels >= threads && threads > 1 && byoc_split_winograd_time(&work, caches) < least;
}

#endif /* BYOC_WINOGRAD_PLAN_H_ */
