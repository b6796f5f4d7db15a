/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_integer.h: convolutions of 3 x 3 pixels by Winograd's F(2 x 2, 3 x 3), which
   has 16 products where there are 36. With whole numbers it is exact: the points of the source are
   sums of four, those of the weights are four times what they would be, and so is the result. */

/* d0 - d2, d1 + d2, d2 - d1, d1 - d3 */
BYOC_INLINE void BYOC_NAME(tile_points)(const BYOC_INTS* d, int64_t step, BYOC_INTS* v) {
  v[0] = BYOC_OP(sub_epi16)(d[0], d[2 * step]);
  v[step] = BYOC_OP(add_epi16)(d[step], d[2 * step]);
  v[2 * step] = BYOC_OP(sub_epi16)(d[2 * step], d[step]);
  v[3 * step] = BYOC_OP(sub_epi16)(d[step], d[3 * step]);
}

/* The points of `rows` tiles from `first` on; those of a point lie `apart` numbers apart. */
BYOC_INLINE void BYOC_NAME(integer_tiles)(const byoc_integer_params* p, const uint8_t* src,
                                          const int is_signed, int32_t zero, int64_t first,
                                          int64_t rows, int64_t apart, int16_t* to) {
  const BYOC_INTS zeros = BYOC_OP(set1_epi16)((int16_t)zero);
  const int64_t across = (p->of.out_width + 1) / 2, down = (p->of.out_height + 1) / 2;
  const int64_t depth = byoc_integer_depth(p);
  int64_t column = first % across, line = first / across % down;
  const uint8_t* image = src + first / across / down * p->of.src.image;
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t x = column * 2 - p->of.pad_left, y = line * 2 - p->of.pad_top;
    for (int64_t c = 0; c < p->of.channels; c += BYOC_PANEL) {
      const int64_t count = byoc_min(BYOC_PANEL, p->of.channels - c);
      BYOC_INTS d[16], v[16];
      BYOC_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int64_t at_y = y + i / 4, at_x = x + i % 4;
        d[i] = BYOC_OP(set1_epi16)(0);
        if (at_y < 0 || at_y >= p->of.height || at_x < 0 || at_x >= p->of.width) continue;
        const uint8_t* from = image + at_y * p->of.src.row + at_x * p->of.src.pixel + c;
        d[i] = BYOC_OP(sub_epi16)(BYOC_NAME(load_tap)(from, count == BYOC_PANEL, count, is_signed),
                                  zeros);
      }
      BYOC_UNROLL
      for (int i = 0; i < 4; ++i) BYOC_NAME(tile_points)(d + i, 4, v + i);
      BYOC_UNROLL
      for (int i = 0; i < 4; ++i) BYOC_NAME(tile_points)(v + 4 * i, 1, d + 4 * i);
      BYOC_UNROLL
      for (int i = 0; i < 16; ++i) BYOC_NAME(store_ints)(to + i * apart + m * depth + c, d[i]);
    }
    if (++column < across) continue;
    column = 0;
    if (++line < down) continue;
    line = 0;
    image += p->of.src.image;
  }
}

/* The results of `rows` tiles of their points, which lie `apart` numbers apart: the upper and lower
   lines of pixels, of which the second begins `line` numbers behind the first. */
BYOC_INLINE void BYOC_NAME(integer_pixels)(const int32_t* points, int64_t apart, int64_t rows,
                                           int64_t line, int32_t* to) {
  for (int64_t m = 0; m < rows; ++m) {
    BYOC_UNROLL
    for (int n = 0; n < BYOC_PANEL; n += BYOC_LANES) {
      BYOC_INTS s[16], upper[4], lower[4];
      BYOC_UNROLL
      for (int i = 0; i < 16; ++i) {
        s[i] = BYOC_NAME(load_ints)(points + i * apart + m * BYOC_PANEL + n);
      }
      BYOC_UNROLL
      for (int i = 0; i < 4; ++i) {
        upper[i] = BYOC_OP(add_epi32)(BYOC_OP(add_epi32)(s[i], s[4 + i]), s[8 + i]);
        lower[i] = BYOC_OP(sub_epi32)(BYOC_OP(sub_epi32)(s[4 + i], s[8 + i]), s[12 + i]);
      }
      BYOC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const BYOC_INTS* r = i == 0 ? upper : lower;
        int32_t* at = to + i * line + 2 * m * BYOC_PANEL + n;
        const BYOC_INTS left = BYOC_OP(add_epi32)(BYOC_OP(add_epi32)(r[0], r[1]), r[2]);
        const BYOC_INTS right = BYOC_OP(sub_epi32)(BYOC_OP(sub_epi32)(r[1], r[2]), r[3]);
        BYOC_NAME(store_ints)(at, BYOC_CONVERT(srai_epi32, left, 2));
        BYOC_NAME(store_ints)(at + BYOC_PANEL, BYOC_CONVERT(srai_epi32, right, 2));
      }
    }
  }
}

/* Stores the pixels of `rows` tiles from `first` on, one line of tiles at a time. */
BYOC_INLINE void BYOC_NAME(finish_tiles)(const byoc_integer_params* p, int64_t first, int64_t rows,
                                         int64_t line, int64_t column, int64_t columns,
                                         int32_t* pixels, void* const* data) {
  const int64_t across = (p->of.out_width + 1) / 2, down = (p->of.out_height + 1) / 2;
  int64_t count;
  for (int64_t m = 0; m < rows; m += count) {
    const int64_t x = (first + m) % across, y = (first + m) / across % down;
    const int64_t image = (first + m) / across / down;
    count = byoc_min(rows - m, across - x);
    for (int64_t i = 0; i < 2 && 2 * y + i < p->of.out_height; ++i) {
      const int64_t at = (image * p->of.out_height + 2 * y + i) * p->of.out_width + 2 * x;
      BYOC_NAME(integer_finish)(
          p, pixels + i * line + 2 * m * BYOC_PANEL, NULL, at * p->of.dst.pixel + column,
          byoc_min(2 * count, p->of.out_width - 2 * x), column, columns, data);
    }
  }
}

BYOC_INLINE void BYOC_NAME(integer_winograd)(const byoc_integer_params* p, int64_t thread,
                                             int64_t team, void* const* data, char* memory) {
  const byoc_share share =
      byoc_divide(byoc_integer_tiles(p), BYOC_ROWS, p->of.outputs, BYOC_PANEL, thread, team);
  const int64_t depth = byoc_integer_depth(p), all = share.last_row - share.first_row;
  const int64_t blocks = (all + p->rows - 1) / p->rows, apart = p->rows * BYOC_PANEL;
  const int32_t zero = byoc_integer_zero(data, p->at.src_zero);
  const uint8_t* src = (const uint8_t*)data[0];
  int16_t* numbers = (int16_t*)memory;
  int32_t* sums = (int32_t*)(memory + byoc_integer_numbers_bytes(p)) + byoc_round_up(p->rows, 16);
  int32_t* pixels = sums + BYOC_INTEGER_POINTS * apart;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = share.first_row + all * block / blocks;
    const int64_t rows = share.first_row + all * (block + 1) / blocks - first;
    const byoc_passes passes = byoc_in_passes(rows, BYOC_ROWS);
    if (p->src_dtype == BYOC_S8) {
      BYOC_NAME(integer_tiles)(p, src, 1, zero, first, rows, p->rows * depth, numbers);
    } else {
      BYOC_NAME(integer_tiles)(p, src, 0, zero, first, rows, p->rows * depth, numbers);
    }
    for (int64_t panel = share.first_panel; panel < share.last_panel; ++panel) {
      const int64_t column = panel * BYOC_PANEL;
      for (int64_t point = 0; point < BYOC_INTEGER_POINTS; ++point) {
        const int16_t* a = numbers + point * p->rows * depth;
        const int16_t* b =
            (const int16_t*)data[1] + (panel * BYOC_INTEGER_POINTS + point) * depth * BYOC_PANEL;
        for (int64_t pass = 0, top = 0; pass < passes.count; ++pass) {
          const int64_t present = byoc_pass_rows(&passes, pass);
          BYOC_NAME(integer_product)
          (p, present, a + top * depth, b, sums + point * apart + top * BYOC_PANEL);
          top += present;
        }
      }
      BYOC_NAME(integer_pixels)(sums, apart, rows, 2 * apart, pixels);
      BYOC_NAME(finish_tiles)(p, first, rows, 2 * apart, column,
                              byoc_min(p->of.outputs - column, BYOC_PANEL), pixels, data);
    }
  }
}
