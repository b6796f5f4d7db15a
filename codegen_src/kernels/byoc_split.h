/* SPDX-License-Identifier: Apache-2.0
   Convolutions and products of matrices with constant weights in float32, by the matrix unit AMX,
   which multiplies bfloat16 and adds in float32.

   A float32 x is the sum of three bfloat16, each the nearest one to what the others leave:
   x = x1 + x2 + x3. Of the nine products of two numbers' parts, six are computed; the others are
   less than 2^-24 of the product, which is what float32 itself rounds away. The unit is sixteen
   times as fast as AVX-512, so six products cost less than one of float32. With two parts, three
   products of four are computed, at most 2^-16 + 2^-17 of a product is lost, and the weights take
   two thirds of the memory.

   A convolution is a product of matrices: a row of the first one is what a result reads. Each block
   of results has its part of the source copied, split, with padding, into the second-level
   cache; a tile of AMX then reads its rows from there, with the distance between what neighbouring
   results read as its stride, so that nothing is copied for each position of the kernel. The
   weights are split once (byoc_split_parts.h).

   The caller must know that the CPU has AMX and that the operating system lets it be used. */
#ifndef BYOC_SPLIT_H_
#define BYOC_SPLIT_H_

#include "byoc_split_parts.h"

#define BYOC_SIMD_AVX512
#define BYOC_SIMD_AMX
#include "byoc_vector.h"

/* Eight tiles of 16 rows of 64 bytes, until _tile_release(). GCC 12 takes only the first 8 bytes of
   this for read, so they are not made in the function. */
BYOC_INLINE void byoc_split_begin(void) {
  static const struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } kTiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&kTiles);
}

/* Loads one part of the weights of two tiles of outputs, or of one. */
BYOC_INLINE void byoc_split_weights(const int two_columns, const uint16_t* packed) {
  _tile_loadd(6, packed, 64);
  if (two_columns) _tile_loadd(7, packed + BYOC_TILE_ROWS * BYOC_TILE_DEPTH, 64);
}

/* Loads one part of the source of two tiles of results, or of one. */
BYOC_INLINE void byoc_split_source(const int two_rows, const uint16_t* a, int64_t row) {
  _tile_loadd(4, a, (size_t)row * 2);
  if (two_rows) _tile_loadd(5, a + BYOC_TILE_ROWS * row, (size_t)row * 2);
}

/* The same of the last chunk of a run of pixels, without the numbers of the pixels behind it: the
   weights there are zero, but zero times infinity is NaN. */
BYOC_INLINE void byoc_split_source_tail(const int two_rows, const uint16_t* a, int64_t row,
                                        int numbers) {
  uint16_t kept[BYOC_SPLIT_ROWS][BYOC_TILE_DEPTH];
  for (int i = 0; i < (two_rows ? 2 : 1) * BYOC_TILE_ROWS; ++i) {
    const __mmask32 mask = (__mmask32)((1u << numbers) - 1);
    _mm512_storeu_si512(kept[i], _mm512_maskz_loadu_epi16(mask, a + i * row));
  }
  byoc_split_source(two_rows, kept[0], BYOC_TILE_DEPTH);
}

/* Lines that are fetched into the second-level cache: those from `next` to `end`, `at_once` at a
   time. */
typedef struct byoc_split_fetch {
  const char *next, *end;
  int64_t at_once;
} byoc_split_fetch;

BYOC_INLINE void byoc_split_fetch_some(byoc_split_fetch* f) {
  for (int64_t i = 0; i < f->at_once && f->next < f->end; ++i, f->next += BYOC_CACHE_LINE) {
    _mm_prefetch(f->next, _MM_HINT_T1);
  }
}

/* Adds the products of what is loaded, and fetches between them: many lines at once would keep the
   tiles that are loaded next waiting. */
BYOC_INLINE void byoc_split_add(const int two_rows, const int two_columns, byoc_split_fetch* f) {
  _tile_dpbf16ps(0, 4, 6);
  byoc_split_fetch_some(f);
  if (two_columns) _tile_dpbf16ps(1, 4, 7);
  byoc_split_fetch_some(f);
  if (two_rows) _tile_dpbf16ps(2, 5, 6);
  byoc_split_fetch_some(f);
  if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
  byoc_split_fetch_some(f);
}

/* Chunks that are multiplied at once, `origin`: the first one that the copy of the source has. The
   weights from `next` on are fetched meanwhile, `lines` lines for each chunk. */
typedef struct byoc_split_step {
  int64_t from, to, origin;
  const char* next;
  int64_t lines;
} byoc_split_step;

/* Adds the products of some chunks to the sums, or begins with them: two tiles of sums, one below
   the other, or one, times two side by side, or one. `a`: the parts of the source where the first
   result begins; with `careful`, some of them are special. */
BYOC_INLINE void byoc_split_sums(const byoc_split_params* p, const int careful, const int two_rows,
                                 const int two_columns, byoc_split_parts a, const uint16_t* packed,
                                 const byoc_split_step* step, float* sums) {
  const int64_t row = p->of.stride_x * p->depth;
  const int tail = careful ? byoc_split_tail(p) : 0;
  const int64_t part = (two_columns ? 2 : 1) * BYOC_TILE_ROWS * BYOC_TILE_DEPTH;
  const size_t stride = BYOC_SPLIT_PANEL * sizeof(float);
  const int three = p->parts == 3;
  float* below = sums + BYOC_TILE_ROWS * BYOC_SPLIT_PANEL;
  if (step->from == 0) {
    _tile_zero(0);
    if (two_columns) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_columns) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, stride);
    if (two_columns) _tile_loadd(1, sums + BYOC_TILE_ROWS, stride);
    if (two_rows) _tile_loadd(2, below, stride);
    if (two_rows && two_columns) _tile_loadd(3, below + BYOC_TILE_ROWS, stride);
  }
  packed += step->from * p->parts * part;
  byoc_split_fetch fetch = {step->next, step->next, 0};
  const int64_t adds = three ? 24 : 12; /* products of tiles for each chunk */
  fetch.at_once = (step->lines + adds - 1) / adds;
  int64_t chunk = step->from % p->chunks, tap = step->from / p->chunks % p->taps;
  for (int64_t y = step->from / p->chunks / p->taps, k = step->from; k < step->to; chunk = 0) {
    const int64_t line = y * p->of.dilation_y % p->of.stride_y * byoc_split_plane(p) +
                         y * p->of.dilation_y / p->of.stride_y * p->columns;
    int64_t at =
        (line + tap * p->of.dilation_x) * p->depth + (chunk - step->origin) * BYOC_TILE_DEPTH;
    const int64_t end = byoc_min(k + p->chunks - chunk, step->to);
    for (; k < end; ++k, at += BYOC_TILE_DEPTH) {
      fetch.end += step->lines * BYOC_CACHE_LINE;
      /* Small products first, in an order that loads least. */
      byoc_split_source(two_rows, a.again + at, row);
      if (three) {
        byoc_split_weights(two_columns, packed + 2 * part);
        byoc_split_add(two_rows, two_columns, &fetch);
      }
      byoc_split_weights(two_columns, packed + part);
      byoc_split_add(two_rows, two_columns, &fetch);
      byoc_split_source(two_rows, a.second + at, row);
      if (three) byoc_split_add(two_rows, two_columns, &fetch);
      byoc_split_weights(two_columns, packed);
      byoc_split_add(two_rows, two_columns, &fetch);
      if (three) {
        byoc_split_source(two_rows, a.third + at, row);
        byoc_split_add(two_rows, two_columns, &fetch);
      }
      if (tail > 0 && k + 1 == end && end % p->chunks == 0) {
        byoc_split_source_tail(two_rows, a.first + at, row, tail);
      } else {
        byoc_split_source(two_rows, a.first + at, row);
      }
      byoc_split_add(two_rows, two_columns, &fetch);
      packed += p->parts * part;
    }
    if (++tap < p->taps) continue;
    tap = 0;
    ++y;
  }
  _tile_stored(0, sums, stride);
  if (two_columns) _tile_stored(1, sums + BYOC_TILE_ROWS, stride);
  if (two_rows) _tile_stored(2, below, stride);
  if (two_rows && two_columns) _tile_stored(3, below + BYOC_TILE_ROWS, stride);
}

/* The same for a number of rows and columns. */
BYOC_NO_INLINE void byoc_split_multiply(const byoc_split_params* p, int64_t rows, int64_t columns,
                                        byoc_split_parts a, const uint16_t* packed,
                                        const byoc_split_step* step, float* sums) {
  const int two_rows = rows > BYOC_TILE_ROWS, two_columns = columns > BYOC_TILE_ROWS;
  if (a.again != a.first) { /* rare: not worth code for each number of tiles */
    byoc_split_sums(p, 1, two_rows, two_columns, a, packed, step, sums);
  } else if (two_rows && two_columns) {
    byoc_split_sums(p, 0, 1, 1, a, packed, step, sums);
  } else if (two_rows) {
    byoc_split_sums(p, 0, 1, 0, a, packed, step, sums);
  } else if (two_columns) {
    byoc_split_sums(p, 0, 0, 1, a, packed, step, sums);
  } else {
    byoc_split_sums(p, 0, 0, 0, a, packed, step, sums);
  }
}

/* The wanted ones of `count` rows of sums, the first of which is number `row` of an image. */
BYOC_NO_INLINE void byoc_split_give(const byoc_split_params* p, const float* sums, int64_t count,
                                    int64_t image, int64_t row, int64_t column, void* const* data) {
  const int64_t across = byoc_split_across(p);
  const int64_t outputs = byoc_min(column + BYOC_SPLIT_PANEL, p->of.outputs);
  byoc_results results = byoc_convolved(&p->of, (const byoc_post_op*)(p + 1), data);
  if (p->of.has_bias) results.bias = (const float*)data[2];
  int64_t y = row / across, x = row % across;
  for (int64_t i = 0; i < count && y < p->of.out_height;) {
    const byoc_position at = {image, y, x, column};
    BYOC_NAME(finish_sums)(&results, sums + i * BYOC_SPLIT_PANEL, BYOC_SPLIT_PANEL,
                           byoc_min(count - i, p->of.out_width - x), at, outputs);
    i += across - x;
    x = 0;
    ++y;
  }
}

/* Results of an image, the first of which is number `first`, for the panels from..to. */
typedef struct byoc_split_block {
  int64_t image, first, count, from, to;
} byoc_split_block;

/* The products of a block with the chunks begin..end of a panel, of which the copy has those from
   `origin` on. `after`: the weights that are needed after these, or NULL if nothing is to be
   fetched ahead, which costs time where the weights are in the second-level cache already. */
BYOC_INLINE void byoc_split_panel(const byoc_split_params* p, const byoc_split_block* block,
                                  int64_t panel, int64_t origin, int64_t begin, int64_t end,
                                  byoc_split_parts copy, const uint16_t* weights,
                                  const uint16_t* after, float* sums) {
  const int64_t columns = byoc_min(p->of.outputs - panel * BYOC_SPLIT_PANEL, BYOC_SPLIT_PANEL);
  const int64_t size = byoc_split_chunk_size(p, BYOC_SPLIT_PANEL), chunks = end - begin;
  const int64_t steps = (chunks + BYOC_SPLIT_AT_ONCE - 1) / BYOC_SPLIT_AT_ONCE;
  const int64_t passes = (block->count + BYOC_SPLIT_ROWS - 1) / BYOC_SPLIT_ROWS;
  const int64_t lines = size * (int64_t)sizeof(*weights) / BYOC_CACHE_LINE;
  for (int64_t i = 0; i < steps; ++i) {
    byoc_split_step step;
    step.from = begin + chunks * i / steps;
    step.to = begin + chunks * (i + 1) / steps;
    step.origin = origin;
    step.next = (const char*)(i + 1 < steps ? weights + step.to * size : after);
    /* All rows of the block together fetch what they need next. */
    step.lines = after == NULL ? 0 : (lines + passes - 1) / passes;
    for (int64_t row = 0; row < block->count; row += BYOC_SPLIT_ROWS) {
      byoc_split_multiply(p, block->count - row, columns,
                          byoc_split_move(copy, row * p->of.stride_x * p->depth), weights, &step,
                          sums + row * BYOC_SPLIT_PANEL);
      step.next += step.lines * (step.to - step.from) * BYOC_CACHE_LINE;
    }
  }
}

BYOC_NO_INLINE void byoc_split_run_block(const byoc_split_params* p, const byoc_split_block* block,
                                         void* const* data, byoc_split_parts parts, float* sums) {
  const float* src = (const float*)data[0] + block->image * p->of.src.image;
  const int64_t chunks = byoc_split_chunks(p), size = byoc_split_chunk_size(p, BYOC_SPLIT_PANEL);
  const int64_t panel_sums = p->slices > 1 ? p->rows_at_once * BYOC_SPLIT_PANEL : 0;
  for (int64_t slice = 0; slice < p->slices; ++slice) {
    const int64_t begin = chunks * slice / p->slices, end = chunks * (slice + 1) / p->slices;
    const int64_t channel = p->slices > 1 ? begin * BYOC_TILE_DEPTH : 0;
    const float* from = src + byoc_channel_offset(&p->of.src, channel);
    byoc_split_params part = *p; /* these channels only */
    if (p->slices > 1) {
      part.filled = (end - begin) * BYOC_TILE_DEPTH;
      part.of.channels = byoc_min(p->of.channels - channel, part.filled);
    }
    byoc_split_parts copy = parts;
    if (byoc_split_take(&part, 0, from, block->first, block->count, parts)) {
      byoc_split_take(&part, 1, from, block->first, block->count, parts);
    } else {
      copy.again = copy.first;
    }
    for (int64_t panel = block->from; panel < block->to; ++panel) {
      const uint16_t* weights = (const uint16_t*)data[1] + panel * chunks * size;
      const uint16_t* after = panel + 1 < block->to ? weights + (chunks + begin) * size : weights;
      float* own = sums + (panel - block->from) * panel_sums;
      byoc_split_panel(p, block, panel, p->slices > 1 ? begin : 0, begin, end, copy, weights, after,
                       own);
      if (slice + 1 < p->slices) continue;
      byoc_split_give(p, own, block->count, block->image, block->first, panel * BYOC_SPLIT_PANEL,
                      data);
    }
  }
}

/* The work of one thread of a team. */
BYOC_NO_INLINE void byoc_split_part(const byoc_split_params* p, void* const* data, void* memory,
                                    int64_t thread, int64_t team) {
  char* scratch = (char*)memory + (size_t)thread * byoc_split_thread_bytes(p);
  const int64_t image_rows = byoc_split_image_rows(p), copy = byoc_split_copy(p);
  const int64_t wanted = p->of.out_height * byoc_split_across(p);
  const byoc_share share = byoc_divide(p->of.images * image_rows, BYOC_SPLIT_ROWS, p->of.outputs,
                                       BYOC_SPLIT_PANEL, thread, team);
  uint16_t* numbers = (uint16_t*)scratch;
  const byoc_split_parts parts = {numbers, numbers + copy,
                                  p->parts == 3 ? numbers + 3 * copy : NULL, numbers + 2 * copy};
  float* sums = (float*)(scratch + byoc_split_copies_bytes(p));
  byoc_split_begin();
  for (int64_t row = share.first_row; row < share.last_row;) {
    const int64_t image = row / image_rows, first = row - image * image_rows;
    /* The blocks of an image have nearly equal sizes. */
    const int64_t left = byoc_min(share.last_row - row, image_rows - first);
    const int64_t blocks = (left + p->rows_at_once - 1) / p->rows_at_once;
    const int64_t rows = byoc_round_up((left + blocks - 1) / blocks, BYOC_SPLIT_ROWS);
    const byoc_split_block block = {image, first, byoc_min(rows, wanted - first), share.first_panel,
                                    share.last_panel};
    if (block.count > 0) byoc_split_run_block(p, &block, data, parts, sums);
    row += byoc_min(rows, left);
  }
  _tile_release();
}

#include "byoc_vector.h"
#undef BYOC_SIMD_AMX
#undef BYOC_SIMD_AVX512

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_KERNEL_BY(split, byoc_split_params, p->of.threads,
               byoc_split_part(p, data, scratch, part, parts))

#endif /* BYOC_SPLIT_H_ */
