/* SPDX-License-Identifier: Apache-2.0
   Convolution 3x3 of stride 1 by Winograd's F(4x4, 3x3), as byoc_winograd.h, whose products are
   computed by AMX, as in byoc_split.h: each number of V and U is the sum of three bfloat16, and six
   of the nine products of two numbers' parts are computed. So both halves are float32's: a quarter
   of the multiplications, each of which takes less than half of AVX-512's time.

   A NaN or an infinity in the source changes all results of the tiles that read it, as there.

   The caller must know that the CPU has AMX and that the operating system lets it be used. */
#ifndef BYOC_SPLIT_WINOGRAD_H_
#define BYOC_SPLIT_WINOGRAD_H_

#include "byoc_split.h"
#include "byoc_winograd.h"

/* In this order, as in byoc_split_parts.h. */
/* clang-format off */
#define BYOC_SIMD_AVX512
#include "byoc_vector.h"
#include "byoc_winograd_tile_body.h"
#include "byoc_vector.h"
#define BYOC_SIMD_AMX
#include "byoc_vector.h"
/* clang-format on */

/* Tiles of a convolution's results, and their memory: V, whose points are `source` apart; the parts
   of V at one point; and M, whose points are `sums` apart. */
typedef struct byoc_split_winograd_block {
  int64_t first, count;
  float *v, *m;
  int64_t source, sums;
  uint16_t* parts;
} byoc_split_winograd_block;

/* V of some tiles of a block, from..to of it. */
BYOC_NO_INLINE void byoc_split_winograd_take(const byoc_winograd_params* w, void* const* data,
                                             const byoc_split_winograd_block* block, int64_t from,
                                             int64_t to) {
  const int64_t row = byoc_round_up(w->of.channels, BYOC_LANES);
  BYOC_NAME(winograd_take_tiles)(w, 0, BYOC_NAME(winograd_locate)(w, block->first + from),
                                 to - from, data, block->v + from * row, row, block->source);
}

/* The upper halves of the numbers of two vectors, side by side in turns; what is left takes their
   place. Cut off like this, the third part of a number has all that is left, and the products that
   are left out are less than 2^-23 of the whole one, since the parts of the weights are nearest
   ones. */
BYOC_INLINE void byoc_split_winograd_cut(BYOC_VEC* x, BYOC_VEC* y, uint16_t* to) {
  typedef uint32_t bits __attribute__((vector_size(sizeof(BYOC_VEC))));
  const bits high = (bits){0} + 0xffff0000u;
  const bits of_x = (bits)*x & high, of_y = (bits)*y & high;
  const bits both = (of_x >> 16) | of_y;
  memcpy(to, &both, sizeof(both));
  *x -= (BYOC_VEC)of_x;
  *y -= (BYOC_VEC)of_y;
}

/* The parts of V at one point. */
BYOC_NO_INLINE byoc_split_parts byoc_split_winograd_divide(const byoc_winograd_params* w,
                                                           const byoc_split_params* p,
                                                           const byoc_split_winograd_block* block,
                                                           int64_t point) {
  const int64_t row = byoc_round_up(w->of.channels, BYOC_LANES);
  const int64_t part = byoc_split_winograd_rows(block->count) * p->depth;
  const float* v = block->v + point * block->source;
  for (int64_t i = 0; i < block->count; ++i, v += row) {
    for (int64_t c = 0; c < row; c += BYOC_TILE_DEPTH) {
      BYOC_VEC x = BYOC_NAME(load)(v + c);
      BYOC_VEC y = c + BYOC_LANES < row ? BYOC_NAME(load)(v + c + BYOC_LANES) : BYOC_NAME(set)(0);
      uint16_t* to = block->parts + i * p->depth + c;
      for (int k = 0; k < BYOC_POINT_PARTS; ++k) byoc_split_winograd_cut(&x, &y, to + k * part);
    }
  }
  uint16_t* first = block->parts;
  const byoc_split_parts parts = {first, first + part, first + 2 * part, first};
  return parts;
}

/* The results of a block for the panels from..to: the products at all points, and their
   transformation. */
BYOC_NO_INLINE void byoc_split_winograd_give(const byoc_winograd_params* w,
                                             const byoc_split_params* p,
                                             const byoc_split_winograd_block* block, int64_t from,
                                             int64_t to, void* const* data) {
  const int64_t size = byoc_split_chunk_size(p, BYOC_SPLIT_PANEL) * p->chunks;
  const int64_t of_point = (int64_t)byoc_split_packed_bytes(p) / 2;
  const int64_t of_panel = byoc_split_winograd_rows(block->count) * BYOC_SPLIT_PANEL;
  const int far = of_point * BYOC_POINTS * 2 > BYOC_NEAR_WEIGHTS;
  const byoc_split_block rows = {0, 0, block->count, from, to};
  for (int64_t point = 0; point < BYOC_POINTS; ++point) {
    const byoc_split_parts parts = byoc_split_winograd_divide(w, p, block, point);
    const uint16_t* weights = (const uint16_t*)data[1] + point * of_point;
    for (int64_t panel = from; panel < to; ++panel) {
      const uint16_t* after =
          weights + (panel + 1 < to ? (panel + 1) * size : of_point + from * size);
      byoc_split_panel(p, &rows, panel, 0, 0, p->chunks, parts, weights + panel * size,
                       far ? after : NULL,
                       block->m + point * block->sums + (panel - from) * of_panel);
    }
  }
  for (int64_t panel = from; panel < to; ++panel) {
    const float* m = block->m + (panel - from) * of_panel;
    const int64_t first = panel * BYOC_SPLIT_PANEL;
    const int64_t end = byoc_min(first + BYOC_SPLIT_PANEL, w->of.outputs);
    BYOC_NAME(winograd_tile) t = BYOC_NAME(winograd_locate)(w, block->first);
    for (int64_t i = 0; i < block->count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
      for (int64_t o = first; o < end; o += BYOC_LANES) {
        const BYOC_NAME(winograd_result) result = BYOC_NAME(winograd_place)(w, 0, o);
        BYOC_NAME(winograd_give)(w, m + i * BYOC_SPLIT_PANEL + o - first, block->sums, t, &result,
                                 data);
      }
    }
  }
}

/* The blocks of tiles of one thread of a team; `scratch`: its own. */
BYOC_NO_INLINE void byoc_split_winograd_tiles(const byoc_winograd_params* w,
                                              const byoc_split_params* p, int64_t thread,
                                              int64_t team, void* const* data, float* scratch) {
  const int64_t tiles = byoc_winograd_tiles(w), at_once = w->tiles_at_once;
  const int64_t blocks = (tiles + at_once - 1) / at_once;
  const int64_t slot = byoc_split_winograd_slot(w, at_once);
  uint16_t* parts = (uint16_t*)(scratch + (BYOC_POINTS + 1) * slot);
  byoc_split_winograd_block block = {0, 0, scratch + slot, scratch, slot, slot, parts};
  byoc_split_begin();
  for (int64_t i = blocks * thread / team; i < blocks * (thread + 1) / team; ++i) {
    block.first = i * at_once;
    block.count = byoc_min(at_once, tiles - block.first);
    byoc_split_winograd_take(w, data, &block, 0, block.count);
    byoc_split_winograd_give(w, p, &block, 0, byoc_split_winograd_panels(w), data);
  }
  _tile_release();
}

/* The outputs of one thread of a team, behind V of all tiles, which the team has made together;
   `scratch`: its own. */
BYOC_NO_INLINE void byoc_split_winograd_outputs(const byoc_winograd_params* w,
                                                const byoc_split_params* p, int64_t thread,
                                                int64_t team, void* const* data, float* v,
                                                float* scratch) {
  const int64_t tiles = byoc_winograd_tiles(w), panels = byoc_split_winograd_panels(w);
  const int64_t group = w->outputs_at_once / BYOC_SPLIT_PANEL;
  const int64_t end = panels * (thread + 1) / team, sums = byoc_split_winograd_sums(tiles, group);
  const byoc_split_winograd_block block = {0,
                                           tiles,
                                           v,
                                           scratch,
                                           byoc_split_winograd_source(w, tiles),
                                           sums,
                                           (uint16_t*)(scratch + BYOC_POINTS * sums)};
  byoc_split_begin();
  for (int64_t panel = panels * thread / team; panel < end; panel += group) {
    byoc_split_winograd_give(w, p, &block, panel, byoc_min(panel + group, end), data);
  }
  _tile_release();
}

/* Splits the weights of one chunk of channels and some outputs of a panel, which are `apart`
   numbers from those at the next point. */
BYOC_NO_INLINE void byoc_split_winograd_pack_chunk(const float* points, int64_t apart,
                                                   int64_t outputs, uint16_t* packed,
                                                   int64_t of_point) {
  float chunk[BYOC_TILE_DEPTH * BYOC_SPLIT_PANEL];
  for (int64_t point = 0; point < BYOC_POINTS; ++point) {
    memcpy(chunk, points + point * apart, sizeof(chunk));
    byoc_split_pack_chunk(chunk, outputs, BYOC_POINT_PARTS, 1, BYOC_LANES,
                          packed + point * of_point);
  }
}

#include "byoc_vector.h"
#undef BYOC_SIMD_AMX
#undef BYOC_SIMD_AVX512

BYOC_FUNCTION void byoc_split_winograd_part(const byoc_winograd_params* w, void* const* data,
                                            void* scratch, int64_t part, int64_t parts) {
  const byoc_split_params p = byoc_split_winograd_product(w);
  const int64_t tiles = byoc_winograd_tiles(w);
  float* const memory = (float*)scratch;
  if (w->over_outputs) {
    const int64_t source = byoc_split_winograd_source(w, tiles);
    const byoc_split_winograd_block all = {0, tiles, memory, NULL, source, 0, NULL};
    byoc_split_winograd_take(w, data, &all, tiles * part / parts, tiles * (part + 1) / parts);
    byoc_wait_for_team(parts);
    byoc_split_winograd_outputs(
        w, &p, part, parts, data, memory,
        memory + BYOC_POINTS * source + part * byoc_split_winograd_group_floats(w));
  } else {
    byoc_split_winograd_tiles(
        w, &p, part, parts, data,
        memory + part * byoc_split_winograd_block_floats(w, w->tiles_at_once));
  }
}

/* The kernel. params: byoc_winograd_params. data: source, packed
   weights, bias if there is one, the operands of the post-operations, result. */
BYOC_KERNEL_BY(split_winograd, byoc_winograd_params, p->of.threads,
               byoc_split_winograd_part(p, data, scratch, part, parts))

BYOC_FUNCTION void byoc_split_winograd_pack_part(const byoc_winograd_params* w, void* const* data,
                                                 int64_t part, int64_t parts) {
  const byoc_split_params p = byoc_split_winograd_product(w);
  const int64_t panels = byoc_split_winograd_panels(w);
  const int64_t blocks = panels * p.chunks;
  const int64_t size = byoc_split_chunk_size(&p, BYOC_SPLIT_PANEL);
  const int64_t of_point = (int64_t)byoc_split_packed_bytes(&p) / 2;
  for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
    enum { kApart = BYOC_TILE_DEPTH * BYOC_SPLIT_PANEL + BYOC_WINOGRAD_TOGETHER };
    const int64_t panel = block / p.chunks, chunk = block % p.chunks;
    const int64_t first = panel * BYOC_SPLIT_PANEL, begin = chunk * BYOC_TILE_DEPTH;
    const int64_t count = byoc_min(w->of.channels - begin, BYOC_TILE_DEPTH);
    const int64_t columns = byoc_min(w->of.outputs - first, BYOC_SPLIT_PANEL);
    const int64_t of_chunk = byoc_split_chunk_size(&p, columns);
    float points[BYOC_POINTS * kApart];
    if (count < BYOC_TILE_DEPTH) memset(points, 0, sizeof(points));
    for (int64_t o = 0; o < columns; o += BYOC_WINOGRAD_TOGETHER) {
      const float* from = (const float*)data[0] + (first + o) * w->of.weights.output;
      for (int64_t c = 0; c < count; ++c) {
        byoc_winograd_transform(w, /*phase=*/0, from + (begin + c) * w->of.weights.channel,
                                byoc_min(columns - o, BYOC_WINOGRAD_TOGETHER),
                                points + c * BYOC_SPLIT_PANEL + o, kApart);
      }
    }
    byoc_split_winograd_pack_chunk(points, kApart, columns,
                                   (uint16_t*)data[1] + panel * p.chunks * size + chunk * of_chunk,
                                   of_point);
  }
}

/* params: byoc_winograd_params. data: the weights, and what is made of them: point, panel of
   outputs, and the rest as in byoc_split_pack. */
BYOC_KERNEL(split_winograd_pack, byoc_winograd_params, byoc_split_allow(threads))

#endif /* BYOC_SPLIT_WINOGRAD_H_ */
