/* SPDX-License-Identifier: Apache-2.0
   Of byoc_split.h: numbers as sums of bfloat16, the copy of the source that has them, and the
   weights in tiles, which are made once. */
#ifndef BYOC_SPLIT_PARTS_H_
#define BYOC_SPLIT_PARTS_H_

#include <sys/syscall.h>
#include <unistd.h>

#include "byoc_split_plan.h"

#if !BYOC_HAS_AMX
#error "AMX needs GCC 11 or Clang 12, or newer"
#endif

/* In this order: the functions of byoc_vector.h do not use AMX, since others call them, too. */
/* clang-format off */
#define BYOC_SIMD_AVX512
#include "byoc_vector.h"
#include "byoc_vector.h"
#define BYOC_SIMD_AMX
#include "byoc_vector.h"
/* clang-format on */

/* Where the parts of a number lie. `again` is the first part without infinities and NaN: what the
   lower parts of the weights are multiplied by. */
typedef struct byoc_split_parts {
  uint16_t *first, *second, *third, *again;
} byoc_split_parts;

BYOC_INLINE byoc_split_parts byoc_split_move(byoc_split_parts parts, int64_t numbers) {
  parts.first += numbers;
  parts.second += numbers;
  if (parts.third != NULL) parts.third += numbers;
  parts.again += numbers;
  return parts;
}

/* 16 bfloat16 as floats. The masked forms spare GCC a warning. */
BYOC_INLINE BYOC_VEC byoc_split_widen(__m256i parts) {
  return (BYOC_VEC)_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, parts), 16);
}
/* The other way: to the nearest one, or towards zero. */
BYOC_INLINE __m256i byoc_split_nearest(BYOC_VEC x) {
  return (__m256i)_mm512_cvtneps_pbh((__m512)x);
}
BYOC_INLINE __m256i byoc_split_shorten(BYOC_VEC x) {
  return _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_maskz_srli_epi32(0xffff, (__m512i)x, 16));
}

/* Which of the parts are no finite numbers. */
BYOC_INLINE __mmask16 byoc_split_special(__m256i first) {
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  return _mm256_cmpeq_epi16_mask(_mm256_and_si256(first, exponent), exponent);
}

/* Writes 16 parts, or the first ones. */
BYOC_INLINE void byoc_split_write(uint16_t* to, int room, __m256i parts) {
  if (room == BYOC_LANES) {
    memcpy(to, &parts, sizeof(parts));
  } else {
    _mm256_mask_storeu_epi16(to, (__mmask16)((1u << room) - 1), parts);
  }
}

/* Writes the parts of 16 numbers, of which there is room for some, and returns whether one is
   special. With `careful`, an infinity or a NaN has no other parts, and a finite number does not
   become infinite. */
BYOC_INLINE int byoc_split_store(BYOC_VEC x, const int careful, int room, byoc_split_parts to) {
  __m256i first = byoc_split_nearest(x);
  const __mmask16 special = byoc_split_special(first);
  __mmask16 kept = 0xffff, finite = 0; /* numbers with other parts; large ones among the special */
  if (careful) {
    const __m256i shorter = byoc_split_shorten(x);
    finite = (__mmask16)(special & ~byoc_split_special(shorter));
    first = _mm256_mask_mov_epi16(first, finite, shorter);
    kept = (__mmask16)(~special | finite);
    byoc_split_write(to.again, room, _mm256_maskz_mov_epi16(kept, first));
  }
  BYOC_VEC rest = x - byoc_split_widen(first);
  __m256i part = byoc_split_nearest(rest);
  if (careful) {
    part = _mm256_mask_mov_epi16(part, finite, byoc_split_shorten(rest));
    part = _mm256_maskz_mov_epi16(kept, part);
  }
  byoc_split_write(to.first, room, first);
  byoc_split_write(to.second, room, part);
  if (to.third != NULL) {
    rest = rest - byoc_split_widen(part);
    part = _mm256_maskz_mov_epi16(kept, byoc_split_nearest(rest));
    byoc_split_write(to.third, room, part);
  }
  return special != 0;
}

/* Zeros for `pixels` pixels. */
BYOC_INLINE void byoc_split_zeros(const byoc_split_params* p, int careful, int64_t pixels,
                                  byoc_split_parts to) {
  const size_t bytes = (size_t)(pixels * p->depth) * 2;
  memset(to.first, 0, bytes);
  memset(to.second, 0, bytes);
  if (to.third != NULL) memset(to.third, 0, bytes);
  if (careful) memset(to.again, 0, bytes);
}

/* `count` numbers that lie side by side, and zeros up to `room`. */
BYOC_INLINE int byoc_split_run(const int careful, const float* from, int64_t count, int64_t room,
                               byoc_split_parts to) {
  int special = 0;
  int64_t i = 0;
  for (; i + BYOC_LANES <= count; i += BYOC_LANES) {
    special |=
        byoc_split_store(BYOC_NAME(load)(from + i), careful, BYOC_LANES, byoc_split_move(to, i));
  }
  for (; i < room; i += BYOC_LANES) {
    const int lanes = (int)byoc_max(byoc_min(BYOC_LANES, count - i), 0);
    const BYOC_VEC v = lanes == 0 ? BYOC_NAME(set)(0) : BYOC_NAME(load_some)(from + i, lanes);
    special |=
        byoc_split_store(v, careful, (int)byoc_min(BYOC_LANES, room - i), byoc_split_move(to, i));
  }
  return special;
}

/* `pixels` neighbouring pixels whose channels lie side by side, all or in blocks. */
BYOC_INLINE int byoc_split_pixels(const byoc_split_params* p, const int careful, const float* from,
                                  int64_t pixels, byoc_split_parts to) {
  int special = 0;
  if (p->of.src.pixel == p->depth && p->of.src.lanes >= p->of.channels &&
      p->depth == p->of.channels) {
    const int64_t count = pixels * p->depth; /* nothing between them */
    return byoc_split_run(careful, from, count, count, to);
  }
  for (int64_t x = 0; x < pixels;
       ++x, from += p->of.src.pixel, to = byoc_split_move(to, p->depth)) {
    const float* block = from;
    for (int64_t c = 0; c < p->of.channels; c += p->of.src.lanes, block += p->of.src.block) {
      const int64_t count = byoc_min(p->of.src.lanes, p->of.channels - c);
      const int64_t room = c + count == p->of.channels ? p->filled - c : count;
      special |= byoc_split_run(careful, block, count, room, byoc_split_move(to, c));
    }
  }
  return special;
}

/* The same where each channel is an image of its own, and so the pixels of a channel lie side by
   side. */
BYOC_INLINE int byoc_split_planar(const byoc_split_params* p, const int careful, const float* from,
                                  int64_t pixels, byoc_split_parts to) {
  uint16_t numbers[4][BYOC_LANES];
  const byoc_split_parts parts = {numbers[0], numbers[1], numbers[2], numbers[3]};
  int special = 0;
  if (p->filled > p->of.channels) byoc_split_zeros(p, careful, pixels, to);
  for (int64_t x = 0; x < pixels; x += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, pixels - x);
    for (int64_t c = 0; c < p->of.channels; ++c) {
      const float* channel = from + byoc_channel_offset(&p->of.src, c) + x;
      special |= byoc_split_store(BYOC_NAME(load_some)(channel, lanes), careful, BYOC_LANES, parts);
      for (int i = 0; i < lanes; ++i) {
        const int64_t place = (x + i) * p->depth + c;
        to.first[place] = numbers[0][i];
        to.second[place] = numbers[1][i];
        if (to.third != NULL) to.third[place] = numbers[2][i];
        if (careful) to.again[place] = numbers[3][i];
      }
    }
  }
  return special;
}

/* The copy of what `count` results from `first` on read of an image; whether it has special
 * numbers.
 */
BYOC_INLINE int byoc_split_take(const byoc_split_params* p, const int careful, const float* image,
                                int64_t first, int64_t count, byoc_split_parts to) {
  const int64_t across = byoc_split_across(p),
                top = first / across * p->of.stride_y - p->of.pad_top;
  const int64_t left = first % across * p->of.stride_x;
  const int64_t below = (p->of.kernel_height - 1) * p->of.dilation_y / p->of.stride_y;
  const int64_t pixels = (count - 1) * p->of.stride_x + below * p->columns + byoc_split_beside(p);
  const int planar =
      p->of.src.lanes < BYOC_LANES && p->of.src.lanes < p->of.channels && p->of.src.pixel == 1;
  int special = 0;
  for (int64_t phase = 0; phase < byoc_split_planes(p); ++phase) {
    byoc_split_parts at = byoc_split_move(to, phase * byoc_split_plane(p) * p->depth);
    int64_t column = left;
    for (int64_t y = top + phase, rest = pixels; rest > 0; y += p->of.stride_y, column = 0) {
      const int64_t stop = byoc_min(p->columns, column + rest); /* of this row */
      const int64_t edge = y < 0 || y >= p->of.height ? column : p->of.pad_left + p->of.width;
      const int64_t from = byoc_min(byoc_max(column, p->of.pad_left), stop);
      const int64_t to_edge = byoc_max(byoc_min(stop, edge), from);
      byoc_split_zeros(p, careful, from - column, at);
      at = byoc_split_move(at, (from - column) * p->depth);
      if (to_edge > from) {
        const float* row = image + y * p->of.src.row + (from - p->of.pad_left) * p->of.src.pixel;
        special |= planar ? byoc_split_planar(p, careful, row, to_edge - from, at)
                          : byoc_split_pixels(p, careful, row, to_edge - from, at);
      }
      at = byoc_split_move(at, (to_edge - from) * p->depth);
      byoc_split_zeros(p, careful, stop - to_edge, at);
      at = byoc_split_move(at, (stop - to_edge) * p->depth);
      rest -= stop - column;
    }
  }
  return special;
}

/* The next part of 2 x 16 weights, that of the first row below that of the second in each number;
   what is left takes their place. */
BYOC_INLINE void byoc_split_pair(float* first, float* second, uint16_t* packed) {
  const BYOC_VEC a = BYOC_NAME(load)(first), b = BYOC_NAME(load)(second);
  const __m256i low = byoc_split_nearest(a), high = byoc_split_nearest(b);
  const __m512i both =
      _mm512_or_si512(_mm512_maskz_cvtepu16_epi32(0xffff, low), (__m512i)byoc_split_widen(high));
  memcpy(packed, &both, sizeof(both));
  BYOC_NAME(store)(first, a - byoc_split_widen(low));
  BYOC_NAME(store)(second, b - byoc_split_widen(high));
}

/* The weights of one chunk and some outputs of a panel, whose parts are taken away from them. Two
   channels are a pair: `apart` channels apart, with `step` between the first ones of two pairs.
   Returns the place behind the packed weights. */
BYOC_INLINE uint16_t* byoc_split_pack_chunk(float* chunk, int64_t columns, int64_t parts, int step,
                                            int apart, uint16_t* packed) {
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t tile = 0; tile < columns; tile += BYOC_TILE_ROWS) {
      for (int i = 0; i < BYOC_TILE_DEPTH / 2; ++i, packed += 2 * BYOC_TILE_ROWS) {
        float* first = chunk + i * step * BYOC_SPLIT_PANEL + tile;
        byoc_split_pair(first, first + apart * BYOC_SPLIT_PANEL, packed);
      }
    }
  }
  return packed;
}

/* Fetches the weights of a chunk, the first of which is `from`, where they are rows of outputs or
   of channels: they lie far apart, and the hardware does not follow so many rows. */
BYOC_INLINE void byoc_split_pack_fetch(const byoc_weight_strides* s, const float* from) {
  const int64_t row = s->output == 1 ? s->channel : s->output;
  if (s->output != 1 && s->channel != 1) return;
  for (int64_t i = 0; i < BYOC_TILE_DEPTH; ++i, from += row) {
    __builtin_prefetch(from);
    __builtin_prefetch(from + BYOC_CACHE_LINE_FLOATS);
  }
}

/* One panel of weights: chunk, part, tile of outputs, pair of numbers, output, number. */
BYOC_NO_INLINE void byoc_split_pack_panel(const byoc_split_params* p, const float* weights,
                                          int64_t column, uint16_t* packed) {
  const byoc_weight_strides* s = &p->of.weights;
  weights += column * s->output;
  const int64_t columns = byoc_min(p->of.outputs - column, BYOC_SPLIT_PANEL);
  /* Where pixels are read as one run, the channels of one follow those of the other. */
  const int64_t pixel = p->taps < p->of.kernel_width ? p->of.channels : p->chunks * BYOC_TILE_DEPTH;
  float chunk[BYOC_TILE_DEPTH][BYOC_SPLIT_PANEL];
  for (int64_t y = 0; y < p->of.kernel_height; ++y) {
    for (int64_t tap = 0; tap < p->taps; ++tap) {
      for (int64_t c = 0; c < p->chunks; ++c) {
        memset(chunk, 0, sizeof(chunk));
        int64_t x = tap + c * BYOC_TILE_DEPTH / pixel, channel = c * BYOC_TILE_DEPTH % pixel;
        if (channel + 2 * BYOC_TILE_DEPTH <= p->of.channels) {
          byoc_split_pack_fetch(s, weights + (channel + BYOC_TILE_DEPTH) * s->channel +
                                       (y * p->of.kernel_width + x) * s->tap);
        }
        for (int i = 0; i < BYOC_TILE_DEPTH; ++i, ++channel) {
          if (channel == pixel) {
            channel = 0;
            ++x;
          }
          if (x >= p->of.kernel_width || channel >= p->of.channels) continue;
          const float* from =
              weights + channel * s->channel + (y * p->of.kernel_width + x) * s->tap;
          for (int64_t n = 0; n < columns; ++n) chunk[i][n] = from[n * s->output];
        }
        packed = byoc_split_pack_chunk(chunk[0], columns, p->parts, 2, 1, packed);
      }
    }
  }
}

#include "byoc_vector.h"
#undef BYOC_SIMD_AMX
#undef BYOC_SIMD_AVX512

/* Asks Linux to let this process use AMX, for so many threads; returns them. */
static inline int64_t byoc_split_allow(int64_t threads) {
  enum { kRequestState = 0x1023, kTiles = 18 };
  syscall(SYS_arch_prctl, kRequestState, kTiles);
  return threads;
}

BYOC_FUNCTION void byoc_split_pack_part(const byoc_split_params* p, void* const* data, int64_t part,
                                        int64_t parts) {
  const int64_t panels = (p->of.outputs + BYOC_SPLIT_PANEL - 1) / BYOC_SPLIT_PANEL;
  const int64_t size = byoc_split_chunks(p) * byoc_split_chunk_size(p, BYOC_SPLIT_PANEL);
  for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
    byoc_split_pack_panel(p, (const float*)data[0], panel * BYOC_SPLIT_PANEL,
                          (uint16_t*)data[1] + panel * size);
  }
}

/* params: as of byoc_split. data: the weights, and what is made of them. */
BYOC_KERNEL(split_pack, byoc_split_params, byoc_split_allow(threads))

#endif /* BYOC_SPLIT_PARTS_H_ */
