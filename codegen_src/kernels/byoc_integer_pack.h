/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_integer.h in 16 bits, made once. */
#ifndef BYOC_INTEGER_PACK_H_
#define BYOC_INTEGER_PACK_H_

#include "byoc_integer_plan.h"

static inline int16_t byoc_integer_weight(const byoc_integer_pack_params* p, const uint8_t* weights,
                                          int64_t at) {
  return p->is_signed ? (int16_t)(int8_t)weights[at] : (int16_t)weights[at];
}

/* Of the sum of all taps, and of each tap, the channels of a panel twice: the even ones with zeros
   between them, and the odd ones. */
static inline void byoc_integer_pack_depthwise(const byoc_integer_pack_params* p,
                                               const uint8_t* weights, int16_t* packed) {
  const int64_t panel = byoc_integer_panel(p->isa), taps = p->kernel_h * p->kernel_w;
  const int64_t of_panel = panel * byoc_integer_tap_numbers(taps);
  memset(packed, 0, (size_t)(byoc_round_up(p->groups, panel) * byoc_integer_tap_numbers(taps)) * 2);
  for (int64_t channel = 0; channel < p->groups; ++channel) {
    int16_t* to = packed + channel / panel * of_panel + channel % 2 * panel + channel % panel;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t at = channel * p->group_stride + tap / p->kernel_w * p->row_stride +
                         tap % p->kernel_w * p->pixel_stride;
      const int16_t weight = byoc_integer_weight(p, weights, at);
      to[0] = (int16_t)(to[0] + weight);
      to[(tap + 1) * 2 * panel] = weight;
    }
  }
}

/* Point (i, j) of a window g of 3 x 3 weights: 4 times what Winograd's F(2 x 2, 3 x 3) has there,
   so that it is whole. */
static inline int16_t byoc_integer_point(const int16_t g[9], int64_t i, int64_t j) {
  static const int8_t kFactors[4][3] = {{2, 0, 0}, {1, 1, 1}, {1, -1, 1}, {0, 0, 2}};
  int32_t sum = 0;
  for (int64_t y = 0; y < 3; ++y) {
    for (int64_t x = 0; x < 3; ++x) sum += kFactors[i][y] * g[y * 3 + x] * kFactors[j][x];
  }
  return (int16_t)sum;
}

/* A panel: point, pairs of channels, column, number of a pair. */
static inline void byoc_integer_pack_tiles(const byoc_integer_pack_params* p,
                                           const uint8_t* weights, int64_t first, int16_t* to) {
  const int64_t panel = byoc_integer_panel(p->isa);
  const int64_t depth = byoc_integer_tile_depth(p->isa, p->channels);
  for (int64_t c = 0; c < depth; ++c) {
    for (int64_t n = 0; n < panel; ++n) {
      int16_t window[9] = {0};
      for (int64_t t = 0; c < p->channels && first + n < p->columns && t < 9; ++t) {
        window[t] = byoc_integer_weight(p, weights,
                                        (first + n) * p->column_stride + c * p->channel_stride +
                                            t / 3 * p->row_stride + t % 3 * p->pixel_stride);
      }
      for (int64_t point = 0; point < BYOC_INTEGER_POINTS; ++point) {
        to[((point * depth / 2 + c / 2) * panel + n) * 2 + c % 2] =
            byoc_integer_point(window, point / 4, point % 4);
      }
    }
  }
}

/* Numbers of `count` columns, `stride` apart: one from `first`, its neighbour along the depth from
   `second` (NULL: zero). */
static inline __attribute__((always_inline)) void byoc_integer_pack_pair(
    const uint8_t* first, const uint8_t* second, int64_t stride, int64_t count, const int is_signed,
    int16_t* to) {
  const int32_t flip = is_signed ? 128 : 0;
  for (int64_t n = 0; n < count; ++n) {
    to[2 * n] = (int16_t)((first[n * stride] ^ flip) - flip);
    to[2 * n + 1] = (int16_t)(second == NULL ? 0 : (second[n * stride] ^ flip) - flip);
  }
}

/* A panel: pairs of the depth (rows and pixels of the window, channels), column, number of a pair.
   `weights`: of its first column. */
static inline void byoc_integer_pack_panel(const byoc_integer_pack_params* p,
                                           const uint8_t* weights, int64_t columns, int16_t* to) {
  const int64_t panel = byoc_integer_panel(p->isa);
  const int64_t depth = p->kernel_h * p->kernel_w * p->channels;
  if (columns < panel) memset(to, 0, (size_t)(byoc_integer_pairs(depth) * 2 * panel) * 2);
  for (int64_t k = 0; k < depth; k += 2, to += 2 * panel) {
    const uint8_t* at[2] = {NULL, NULL};
    for (int64_t i = 0; i < 2 && k + i < depth; ++i) {
      const int64_t c = (k + i) % p->channels, tap = (k + i) / p->channels;
      at[i] = weights + c * p->channel_stride + tap / p->kernel_w * p->row_stride +
              tap % p->kernel_w * p->pixel_stride;
    }
    if (p->column_stride == 1 && p->is_signed) {
      byoc_integer_pack_pair(at[0], at[1], 1, columns, 1, to);
    } else if (p->column_stride == 1) {
      byoc_integer_pack_pair(at[0], at[1], 1, columns, 0, to);
    } else {
      byoc_integer_pack_pair(at[0], at[1], p->column_stride, columns, (int)p->is_signed, to);
    }
  }
}

BYOC_FUNCTION int byoc_integer_pack_on_thread(const int64_t* params, void* const* data,
                                              void* scratch, int64_t part, int64_t parts) {
  const byoc_integer_pack_params* p = (const byoc_integer_pack_params*)params;
  const uint8_t* weights = (const uint8_t*)data[0];
  int16_t* packed = (int16_t*)data[1];
  const int64_t panel = byoc_integer_panel(p->isa);
  const int64_t depth = p->kernel_h * p->kernel_w * p->channels;
  const int64_t pairs = byoc_integer_pairs(depth), panels = (p->columns + panel - 1) / panel;
  const int64_t all = p->groups * panels;
  const int64_t tile_numbers =
      BYOC_INTEGER_POINTS * byoc_integer_tile_depth(p->isa, p->channels) * panel;
  (void)scratch;
  if (byoc_is_depthwise(p->groups, p->channels, p->columns)) { /* on one thread */
    byoc_integer_pack_depthwise(p, weights, packed);
    return BYOC_OK;
  }
  for (int64_t b = all * part / parts; b < all * (part + 1) / parts; ++b) {
    const int64_t group = b / panels, first = b % panels * panel;
    int16_t* to = packed + b * pairs * 2 * panel;
    if (p->is_winograd) {
      byoc_integer_pack_tiles(p, weights, first, packed + b * tile_numbers);
      continue;
    }
    byoc_integer_pack_panel(p, weights + group * p->group_stride + first * p->column_stride,
                            byoc_min(panel, p->columns - first), to);
  }
  return BYOC_OK;
}

/* params: byoc_integer_pack_params. data: the weights, and what is made of them: the panels of each
   group. */
BYOC_FUNCTION int byoc_integer_pack(const int64_t* params, void* const* data, void* scratch,
                                    int threads, char* error) {
  const byoc_integer_pack_params* p = (const byoc_integer_pack_params*)params;
  (void)error;
  return byoc_on_team(byoc_integer_pack_on_thread, params, data, scratch,
                      byoc_is_depthwise(p->groups, p->channels, p->columns) ? 1 : threads);
}

#endif /* BYOC_INTEGER_PACK_H_ */
