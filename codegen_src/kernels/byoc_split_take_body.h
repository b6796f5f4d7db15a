/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_split_body.h: numbers as sums of bfloat16, and the copy of the source that has them;
   no include guard. */

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
  if (p->src.pixel == p->depth && p->src.lanes >= p->channels && p->depth == p->channels) {
    const int64_t count = pixels * p->depth; /* nothing between them */
    return byoc_split_run(careful, from, count, count, to);
  }
  for (int64_t x = 0; x < pixels; ++x, from += p->src.pixel, to = byoc_split_move(to, p->depth)) {
    const float* block = from;
    for (int64_t c = 0; c < p->channels; c += p->src.lanes, block += p->src.block) {
      const int64_t count = byoc_min(p->src.lanes, p->channels - c);
      const int64_t room = c + count == p->channels ? p->filled - c : count;
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
  if (p->filled > p->channels) byoc_split_zeros(p, careful, pixels, to);
  for (int64_t x = 0; x < pixels; x += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, pixels - x);
    for (int64_t c = 0; c < p->channels; ++c) {
      const float* channel = from + byoc_channel_offset(&p->src, c) + x;
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
  const int64_t across = byoc_split_across(p), top = first / across * p->stride_y - p->pad_top;
  const int64_t left = first % across * p->stride_x;
  const int64_t below = (p->kernel_height - 1) * p->dilation_y / p->stride_y;
  const int64_t pixels = (count - 1) * p->stride_x + below * p->columns + byoc_split_beside(p);
  const int planar = p->src.lanes < BYOC_LANES && p->src.lanes < p->channels && p->src.pixel == 1;
  int special = 0;
  for (int64_t phase = 0; phase < byoc_split_planes(p); ++phase) {
    byoc_split_parts at = byoc_split_move(to, phase * byoc_split_plane(p) * p->depth);
    int64_t column = left;
    for (int64_t y = top + phase, rest = pixels; rest > 0; y += p->stride_y, column = 0) {
      const int64_t stop = byoc_min(p->columns, column + rest); /* of this row */
      const int64_t edge = y < 0 || y >= p->height ? column : p->pad_left + p->width;
      const int64_t from = byoc_min(byoc_max(column, p->pad_left), stop);
      const int64_t to_edge = byoc_max(byoc_min(stop, edge), from);
      byoc_split_zeros(p, careful, from - column, at);
      at = byoc_split_move(at, (from - column) * p->depth);
      if (to_edge > from) {
        const float* row = image + y * p->src.row + (from - p->pad_left) * p->src.pixel;
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
