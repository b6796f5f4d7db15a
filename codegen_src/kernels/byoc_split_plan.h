/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_split.h: how the source is laid out for the tiles, how the work is
   divided, and how much memory it takes. */
#ifndef BYOC_SPLIT_PLAN_H_
#define BYOC_SPLIT_PLAN_H_

#include "byoc_post_ops.h"

enum {
  BYOC_TILE_ROWS = 16,     /* and columns, of sums */
  BYOC_TILE_DEPTH = 32,    /* channels that a tile of source or weights has: a chunk */
  BYOC_SPLIT_ROWS = 32,    /* of sums at once: two tiles by two */
  BYOC_SPLIT_PANEL = 32,   /* columns of them */
  BYOC_SPLIT_AT_ONCE = 32, /* chunks of weights that all rows of a block are multiplied by */
  BYOC_CACHE_LINE = 64,
  BYOC_SPLIT_MOST = 512, /* rows of a block, */
  BYOC_SPLIT_FEW = 256   /* and fewer than these rather have slices of their channels */
};

/* The parameters of the kernel; the post-operations follow them. There is one group. */
typedef struct __attribute__((may_alias)) byoc_split_params {
  byoc_convolution of;
  int64_t parts; /* of a number: 2 or 3 */
  /* Set by byoc_split_plan, as the threads are: */
  int64_t filled;       /* numbers of a pixel in the copy of the source: channels, and zeros */
  int64_t depth;        /* the distance between pixels there */
  int64_t taps, chunks; /* for each row of the kernel: places to read from, and chunks of each */
  int64_t columns;      /* pixels of a row of the copy: stride_x times the results of a row, and a
                           few results that nobody wants */
  int64_t slices;       /* of the channels, each of which is copied and multiplied by itself */
  int64_t rows_at_once; /* results of a block */
} byoc_split_params;

/* Chunks of the weights of one result. */
static inline int64_t byoc_split_chunks(const byoc_split_params* p) {
  return p->of.kernel_height * p->taps * p->chunks;
}

/* Numbers in the last chunk of a run of pixels; 0 where pixels are filled up to chunks. */
static inline int byoc_split_tail(const byoc_split_params* p) {
  return p->taps == p->of.kernel_width
             ? 0
             : (int)(p->of.kernel_width * p->of.channels % BYOC_TILE_DEPTH);
}

/* Results of a row, with those that nobody wants. */
static inline int64_t byoc_split_across(const byoc_split_params* p) {
  return p->columns / p->of.stride_x;
}

/* Rows of the product for an image. */
static inline int64_t byoc_split_image_rows(const byoc_split_params* p) {
  return byoc_round_up(p->of.out_height * byoc_split_across(p), BYOC_SPLIT_ROWS);
}

/* Pixels from the first to the last one that a result reads in a row, with what fills up a chunk.
 */
static inline int64_t byoc_split_beside(const byoc_split_params* p) {
  if (p->taps == p->of.kernel_width) return (p->taps - 1) * p->of.dilation_x + 1;
  return (p->chunks * BYOC_TILE_DEPTH + p->depth - 1) / p->depth;
}

/* The copy of the source has a plane for each phase of its rows (row modulo stride_y), so that the
   rows which neighbouring results read are neighbours. Pixels of a plane for a block: */
static inline int64_t byoc_split_plane(const byoc_split_params* p) {
  const int64_t below = (p->of.kernel_height - 1) * p->of.dilation_y / p->of.stride_y;
  return p->rows_at_once * p->of.stride_x + below * p->columns + byoc_split_beside(p);
}
static inline int64_t byoc_split_planes(const byoc_split_params* p) {
  return p->of.kernel_height == 1 ? 1 : p->of.stride_y;
}
static inline int64_t byoc_split_copy(const byoc_split_params* p) {
  return byoc_round_up(byoc_split_planes(p) * byoc_split_plane(p) * p->depth, BYOC_TILE_DEPTH);
}

/* The distance between pixels of so many chunks: rows of a tile must not all fall on the same lines
   of the first-level cache, so it is an odd number of lines. */
static inline int64_t byoc_split_distance(int64_t chunks) {
  return (chunks + (chunks % 2 == 0)) * BYOC_TILE_DEPTH;
}

/* `copy_bytes`: of the parts of the source, beside which the near cache has room for weights. */
static inline void byoc_split_plan(byoc_split_params* p, int threads, int64_t copy_bytes) {
  p->of.threads = threads;
  if (p->of.kernel_width == 1 &&
      p->of.pad_left == 0) { /* pixels that nobody reads are not copied */
    p->of.src.pixel *= p->of.stride_x;
    p->of.width = byoc_min(p->of.out_width, (p->of.width - 1) / p->of.stride_x + 1);
    p->of.stride_x = 1;
  }
  if (p->of.kernel_height == 1 && p->of.pad_top == 0) {
    p->of.src.row *= p->of.stride_y;
    p->of.height = byoc_min(p->of.out_height, (p->of.height - 1) / p->of.stride_y + 1);
    p->of.stride_y = 1;
  }
  p->filled = byoc_round_up(p->of.channels, BYOC_TILE_DEPTH);
  p->chunks = p->filled / BYOC_TILE_DEPTH;
  p->depth = byoc_split_distance(p->chunks);
  p->taps = p->of.kernel_width;
  /* The pixels that a row of the kernel covers lie side by side. With few channels they are read as
     one run, without filling each pixel up to a chunk. */
  const int64_t run = (p->of.kernel_width * p->of.channels + BYOC_TILE_DEPTH - 1) / BYOC_TILE_DEPTH;
  if (p->of.dilation_x == 1 && run < p->taps * p->chunks) {
    p->filled = p->depth = p->of.channels;
    p->taps = 1;
    p->chunks = run;
  }
  /* The zeros to the left of a row serve as those to the right of the row above it. */
  const int64_t reach =
      (p->of.out_width - 1) * p->of.stride_x + (p->of.kernel_width - 1) * p->of.dilation_x + 1;
  const int64_t inside = byoc_min(p->of.width, byoc_max(reach - p->of.pad_left, 1));
  p->columns = byoc_max(p->of.pad_left + inside, reach - p->of.pad_left);
  p->columns =
      byoc_round_up(byoc_max(p->columns, p->of.out_width * p->of.stride_x), p->of.stride_x);
  /* As many rows as leave room in the second-level cache for weights. A product of matrices rather
     has fewer channels at once than fewer rows, for which all weights would be read again. */
  const int64_t all = byoc_split_image_rows(p);
  p->slices = 1;
  p->rows_at_once = byoc_min(all, BYOC_SPLIT_MOST);
  const int divisible = p->of.kernel_height == 1 && p->of.kernel_width == 1 && p->taps == 1 &&
                        p->of.pad_top == 0 && p->of.pad_left == 0;
  while (byoc_split_copy(p) * p->parts * 2 > copy_bytes) {
    if (divisible && p->rows_at_once <= BYOC_SPLIT_FEW && p->slices < p->chunks) {
      ++p->slices;
      p->depth = byoc_split_distance((p->chunks + p->slices - 1) / p->slices);
    } else if (p->rows_at_once > BYOC_SPLIT_ROWS) {
      p->rows_at_once -= BYOC_SPLIT_ROWS;
    } else {
      break;
    }
  }
}

/* Numbers of the packed weights of a chunk and a number of outputs. */
static inline int64_t byoc_split_chunk_size(const byoc_split_params* p, int64_t outputs) {
  return p->parts * BYOC_TILE_DEPTH * byoc_round_up(outputs, BYOC_TILE_ROWS);
}
static inline size_t byoc_split_packed_bytes(const byoc_split_params* p) {
  return (size_t)(byoc_split_chunks(p) * byoc_split_chunk_size(p, p->of.outputs)) * 2;
}

/* Of one thread: the copies of the source, one more than there are parts, and the sums of a panel,
   or of all where the channels have several slices. */
static inline size_t byoc_split_copies_bytes(const byoc_split_params* p) {
  return (size_t)byoc_round_up((p->parts + 1) * byoc_split_copy(p) * 2, 64);
}
static inline size_t byoc_split_thread_bytes(const byoc_split_params* p) {
  const int64_t columns =
      p->slices > 1 ? byoc_round_up(p->of.outputs, BYOC_SPLIT_PANEL) : (int64_t)BYOC_SPLIT_PANEL;
  return byoc_split_copies_bytes(p) + (size_t)(p->rows_at_once * columns) * sizeof(float);
}

static inline size_t byoc_split_scratch_bytes(const byoc_split_params* p) {
  return (size_t)p->of.threads * byoc_split_thread_bytes(p);
}

#endif /* BYOC_SPLIT_PLAN_H_ */
