/* SPDX-License-Identifier: Apache-2.0
   Convolutions by Winograd's minimal filtering, float32: F(4x4, 3x3) and F(2x2, 3x3) for kernels of
   3x3, F(2x2, 5x5) for those of 5x5, and F(4x4, 3x3) for those of 5x5 and stride 2.

   The result is cut into tiles of m x m (m: 4 or 2), each computed from n x n pixels, n = m + 2 for
   3x3 taps and m + 4 for 5x5:

     input transform     V[p] = B' d B        p: the n^2 points; d: the pixels of one tile, per term
     products            M[p] = V[p] U[p]     tiles x terms times terms x outputs, per group
     output transform    Y = A' M A           and the bias and the post-operations, on the tile

   U = G g G' is made of the weights once. Terms are the channels of a group. A stride of 2 makes
   four images of one, of every second pixel and line: these phases are terms too, each with the
   weights that fall on it, at most 3x3 of 5x5.

   F(4x4, 3x3) needs 36 multiplications where the direct convolution needs 144, F(2x2, 5x5) 36
   instead of 100, and with stride 2 it is 144 instead of 400. The matrices are those of Toom and
   Cook for the points 0, -1, 1, 1/2, -2 and infinity, whose rounding errors are half of those of
   the usual points 0, 1, -1, 2, -2 and infinity; those of n = 4 for 0, 1, -1 and infinity.

   A NaN or an infinity in the source changes all results of the tiles that read it, not its
   neighbours only. */
#ifndef BYOC_WINOGRAD_H_
#define BYOC_WINOGRAD_H_

#include "byoc_product.h"
#include "byoc_winograd_plan.h"

#define BYOC_BODY "byoc_winograd.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_KERNEL_FOR_ISA(winograd, byoc_winograd_params, p->of.isa, p->of.threads)

enum {
  BYOC_WINOGRAD_TOGETHER = 16, /* outputs that are transformed together; divides a panel */
  BYOC_WINOGRAD_DEEP = 16,     /* channels whose results are written together, point by point */
  BYOC_WINOGRAD_POINT = BYOC_WINOGRAD_DEEP * 32 + 16 /* numbers; not on the same lines of a cache */
};

/* G of F(4x4, 3x3), F(2x2, 5x5) and F(2x2, 3x3) */
static const float kByocWinograd4[6][5] = {{1, 0, 0},
                                           {-1.f / 3, 1.f / 3, -1.f / 3},
                                           {1.f / 3, 1.f / 3, 1.f / 3},
                                           {-16.f / 15, -8.f / 15, -4.f / 15},
                                           {1.f / 15, -2.f / 15, 4.f / 15},
                                           {0, 0, 1}};
static const float kByocWinograd2Of5[6][5] = {
    {1, 0, 0, 0, 0},
    {-1.f / 3, 1.f / 3, -1.f / 3, 1.f / 3, -1.f / 3},
    {1.f / 3, 1.f / 3, 1.f / 3, 1.f / 3, 1.f / 3},
    {-16.f / 15, -8.f / 15, -4.f / 15, -2.f / 15, -1.f / 15},
    {1.f / 15, -2.f / 15, 4.f / 15, -8.f / 15, 16.f / 15},
    {0, 0, 0, 0, 1}};
static const float kByocWinograd2[6][5] = {
    {-1, 0, 0}, {.5f, .5f, .5f}, {.5f, -.5f, .5f}, {0, 0, 1}};

/* The weights of one phase and channel for `outputs` outputs at all points, which are written
   `point` numbers apart; zeros for what is missing of BYOC_WINOGRAD_TOGETHER outputs. `taps`:
   byoc_winograd_taps, known to the compiler. */
BYOC_INLINE void byoc_winograd_transform_taps(const byoc_winograd_params* w, int taps,
                                              const float (*g)[5], int64_t phase,
                                              const float* weights, int64_t outputs, float* to,
                                              int64_t point) {
  const int64_t n = byoc_winograd_side(w), stride = w->of.stride_x;
  const byoc_weight_strides* s = &w->of.weights;
  float kernel[25][BYOC_WINOGRAD_TOGETHER] = {{0}}, half[5][BYOC_WINOGRAD_TOGETHER];
  for (int i = 0; i < taps; ++i) {
    for (int j = 0; j < taps; ++j) {
      const int64_t y = i * stride + phase / stride, x = j * stride + phase % stride;
      if (y >= w->of.kernel_width || x >= w->of.kernel_width) continue; /* that phase has fewer */
      const float* tap = weights + (y * w->of.kernel_width + x) * s->tap;
      for (int64_t o = 0; o < outputs; ++o) kernel[i * taps + j][o] = tap[o * s->output];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int j = 0; j < taps; ++j) {
      for (int o = 0; o < BYOC_WINOGRAD_TOGETHER; ++o) {
        float sum = g[i][0] * kernel[j][o];
        for (int k = 1; k < taps; ++k) sum += g[i][k] * kernel[k * taps + j][o];
        half[j][o] = sum;
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      float* u = to + (i * n + j) * point;
      for (int o = 0; o < BYOC_WINOGRAD_TOGETHER; ++o) {
        float sum = half[0][o] * g[j][0];
        for (int k = 1; k < taps; ++k) sum += half[k][o] * g[j][k];
        u[o] = sum;
      }
    }
  }
}

static inline void byoc_winograd_transform(const byoc_winograd_params* w, int64_t phase,
                                           const float* weights, int64_t outputs, float* to,
                                           int64_t point) {
  if (byoc_winograd_taps(w) == 5) {
    byoc_winograd_transform_taps(w, 5, kByocWinograd2Of5, phase, weights, outputs, to, point);
  } else {
    byoc_winograd_transform_taps(w, 3, w->m == 4 ? kByocWinograd4 : kByocWinograd2, phase, weights,
                                 outputs, to, point);
  }
}

BYOC_FUNCTION void byoc_winograd_pack_part(const byoc_winograd_params* w, void* const* data,
                                           int64_t part, int64_t parts) {
  const int64_t channels = w->of.channels, terms = byoc_winograd_terms(w);
  const int64_t points = byoc_winograd_points(w);
  const byoc_weight_strides* s = &w->of.weights;
  const int64_t panel = byoc_panel(w->of.isa), panels = (w->of.outputs + panel - 1) / panel;
  const int64_t blocks = (channels + BYOC_WINOGRAD_DEEP - 1) / BYOC_WINOGRAD_DEEP,
                all = panels * blocks;
  for (int64_t group = 0; group < w->of.groups; ++group) {
    const float* weights = (const float*)data[0] + group * s->group;
    float* packed = (float*)data[1] + group * byoc_winograd_packed_floats(w);
    if (w->late) {
      byoc_pack_panels(&w->of, weights, packed, part, parts);
      continue;
    }
    for (int64_t item = all * part / parts; item < all * (part + 1) / parts; ++item) {
      const int64_t first = item / blocks * panel, begin = item % blocks * BYOC_WINOGRAD_DEEP;
      const int64_t count = byoc_min(channels - begin, BYOC_WINOGRAD_DEEP);
      float transformed[36 * BYOC_WINOGRAD_POINT];
      for (int64_t phase = 0; phase < w->of.stride_x * w->of.stride_x; ++phase) {
        for (int64_t o = 0; o < panel; o += BYOC_WINOGRAD_TOGETHER) {
          const int64_t left =
              byoc_min(byoc_max(w->of.outputs - first - o, 0), BYOC_WINOGRAD_TOGETHER);
          const float* from = weights + byoc_min(first + o, w->of.outputs - 1) * s->output;
          for (int64_t c = 0; c < count; ++c) {
            byoc_winograd_transform(w, phase, from + (begin + c) * s->channel, left,
                                    transformed + c * panel + o, BYOC_WINOGRAD_POINT);
          }
        }
        for (int64_t point = 0; point < points; ++point) {
          const int64_t row =
              point * panels * terms + first / panel * terms + phase * channels + begin;
          memcpy(packed + row * panel, transformed + point * BYOC_WINOGRAD_POINT,
                 (size_t)(count * panel) * sizeof(float));
        }
      }
    }
  }
}

/* params: as of byoc_winograd. data: the weights, and what is made of them, in panels: group,
   point, panel of outputs, phase, channel, output. */
BYOC_KERNEL(winograd_pack, byoc_winograd_params, threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

#include "byoc_winograd_tile_body.h"

/* Products of `rows` tiles with the panels of `outputs` outputs, for all points. */
BYOC_NO_INLINE void BYOC_NAME(winograd_multiply_points)(const byoc_winograd_params* w,
                                                        const float* v, int64_t v_rows,
                                                        const float* packed, int64_t first_panel,
                                                        int64_t panels, float* products,
                                                        int64_t product_row) {
  const int64_t points = byoc_winograd_points(w), terms = byoc_winograd_terms(w);
  const int64_t v_row = byoc_row_floats(terms);
  const int64_t v_point = byoc_point_floats(v_rows, v_row);
  const int64_t product_point = byoc_point_floats(v_rows, product_row);
  const int64_t all_panels = (w->of.outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const byoc_passes passes = byoc_in_passes(v_rows, BYOC_ROWS);
  const int64_t panel = terms * BYOC_PANEL;
  const int far = points * all_panels * panel * (int64_t)sizeof(float) > BYOC_NEAR_WEIGHTS;
  const int64_t lines = far && passes.count > 1 ? BYOC_NAME(lines_of_pass)(terms, passes.count) : 0;
  const int64_t every = terms / byoc_max(lines, 1);
  const int64_t bytes = lines * BYOC_CACHE_LINE_FLOATS * (int64_t)sizeof(float) / terms;
  for (int64_t p = 0; p < points; ++p) {
    for (int64_t b = 0; b < panels; ++b) {
      const float* u = packed + (p * all_panels + first_panel + b) * panel;
      const float* next = b + 1 < panels ? u + panel : u + (all_panels - b) * panel;
      byoc_matrices m =
          byoc_plain_product(v + p * v_point, v_row, u, 0, terms,
                             products + p * product_point + b * BYOC_PANEL, product_row);
      for (int64_t pass = 0; pass < passes.count; ++pass) {
        const int64_t rows = byoc_pass_rows(&passes, pass);
        const float* fetched = next + pass * lines * BYOC_CACHE_LINE_FLOATS;
        if (lines == 0) {
          BYOC_NAME(product)((int)rows, 1, &m);
        } else if (every < BYOC_FEW_STEPS) {
          BYOC_NAME(product_fetching_in_each)((int)rows, &m, fetched, bytes);
        } else {
          BYOC_NAME(product_fetching_between)((int)rows, &m, fetched, every);
        }
        byoc_move(&m, rows, 0);
      }
    }
  }
}

/* G of F(4x4, 3x3), applied to three values `s` apart. */
BYOC_INLINE void BYOC_NAME(winograd_filter)(const BYOC_VEC* g, int s, BYOC_VEC* o) {
  const BYOC_VEC g0 = g[0], g1 = g[s], g2 = g[2 * s];
  const BYOC_VEC ends = (g0 + g2) * (1.f / 3), middle = g1 * (1.f / 3);
  o[0] = g0;
  o[1] = middle - ends;
  o[2] = middle + ends;
  o[3] = g0 * (-16.f / 15) - g1 * (8.f / 15) - g2 * (4.f / 15);
  o[4] = g0 * (1.f / 15) - g1 * (2.f / 15) + g2 * (4.f / 15);
  o[5] = g2;
}

/* The 3 x 3 weights of a panel for some channels -> their 36 points, `step` apart. What follows
   them is fetched ahead. */
BYOC_NO_INLINE void BYOC_NAME(winograd_transform_weights)(const float* packed, int64_t channels,
                                                          float* u, int64_t step) {
  enum { kAhead = 768 };
  for (int64_t c = 0; c < channels; ++c) {
    BYOC_UNROLL
    for (int i = 0; i < 9 * BYOC_PANEL; i += BYOC_CACHE_LINE_FLOATS) {
      __builtin_prefetch(packed + c * 9 * BYOC_PANEL + i + kAhead, 0, 2);
    }
    BYOC_UNROLL
    for (int lane = 0; lane < BYOC_PANEL; lane += BYOC_LANES) {
      BYOC_VEC g[9], column[6], half[18], o[6];
      for (int i = 0; i < 9; ++i) {
        g[i] = BYOC_NAME(load)(packed + (c * 9 + i) * BYOC_PANEL + lane);
      }
      BYOC_UNROLL
      for (int j = 0; j < 3; ++j) {
        BYOC_NAME(winograd_filter)(g + j, 3, column);
        for (int i = 0; i < 6; ++i) half[i * 3 + j] = column[i];
      }
      BYOC_UNROLL
      for (int i = 0; i < 6; ++i) {
        BYOC_NAME(winograd_filter)(half + i * 3, 1, o);
        for (int j = 0; j < 6; ++j) {
          BYOC_NAME(store)(u + (i * 6 + j) * step + c * BYOC_PANEL + lane, o[j]);
        }
      }
    }
  }
}

/* The same products where the weights are transformed now, of some channels at a time. `u`: room
   for these. */
BYOC_NO_INLINE void BYOC_NAME(winograd_multiply_late)(const byoc_winograd_params* w, const float* v,
                                                      int64_t v_rows, const float* packed,
                                                      int64_t first_panel, int64_t panels,
                                                      float* products, int64_t product_row,
                                                      float* u) {
  enum { kPoints = 36 };
  const int64_t channels = w->of.channels, v_row = byoc_row_floats(channels);
  const int64_t v_point = byoc_point_floats(v_rows, v_row);
  const int64_t product_point = byoc_point_floats(v_rows, product_row);
  const int64_t depth = byoc_winograd_depth(w->of.isa), step = byoc_winograd_step(w->of.isa);
  const int64_t steps = (channels + depth - 1) / depth;
  const byoc_passes passes = byoc_in_passes(v_rows, BYOC_ROWS);
  const float* weights = packed + first_panel * channels * 9 * BYOC_PANEL;
  for (int64_t b = 0; b < panels; ++b) {
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t top = channels * s / steps, count = channels * (s + 1) / steps - top;
      BYOC_NAME(winograd_transform_weights)(weights, count, u, step);
      weights += count * 9 * BYOC_PANEL;
      for (int64_t p = 0; p < kPoints; ++p) {
        byoc_matrices m =
            byoc_plain_product(v + p * v_point + top, v_row, u + p * step, 0, count,
                               products + p * product_point + b * BYOC_PANEL, product_row);
        if (s > 0) {
          m.start = m.c;
          m.start_row = product_row;
        }
        for (int64_t pass = 0; pass < passes.count; ++pass) {
          const int64_t rows = byoc_pass_rows(&passes, pass);
          BYOC_NAME(product)((int)rows, 1, &m);
          byoc_move(&m, rows, 0);
        }
      }
    }
  }
}

BYOC_INLINE void BYOC_NAME(winograd_multiply)(const byoc_winograd_params* w, const float* v,
                                              int64_t v_rows, const float* packed,
                                              int64_t first_panel, int64_t panels, float* products,
                                              int64_t product_row, float* u) {
  if (w->late) {
    BYOC_NAME(winograd_multiply_late)(w, v, v_rows, packed, first_panel, panels, products,
                                      product_row, u);
  } else {
    BYOC_NAME(winograd_multiply_points)(w, v, v_rows, packed, first_panel, panels, products,
                                        product_row);
  }
}

/* The results of some panels of outputs for `count` tiles from `corner` on, whose points are V. */
BYOC_INLINE void BYOC_NAME(winograd_results)(const byoc_winograd_params* w, int64_t group,
                                             BYOC_NAME(winograd_tile) corner, int64_t count,
                                             const float* v, const float* packed, int64_t first,
                                             int64_t panels, float* products, int64_t row, float* u,
                                             void* const* data) {
  const int64_t point = byoc_point_floats(count, row), begin = first * BYOC_PANEL;
  const int64_t end = byoc_min(w->of.outputs, (first + panels) * BYOC_PANEL);
  BYOC_NAME(winograd_multiply)(w, v, count, packed, first, panels, products, row, u);
  for (int64_t o = begin; o < end; o += BYOC_LANES) {
    const BYOC_NAME(winograd_result) result = BYOC_NAME(winograd_place)(w, group, o);
    BYOC_NAME(winograd_tile) t = corner;
    for (int64_t i = 0; i < count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
      BYOC_NAME(winograd_give)(w, products + i * row + o - begin, point, t, &result, data);
    }
  }
}

/* A group whose transformed source threads share; each computes some outputs of all tiles. */
BYOC_NO_INLINE void BYOC_NAME(winograd_by_outputs)(const byoc_winograd_params* w, int64_t group,
                                                   const float* packed, void* const* data, float* v,
                                                   float* products, float* u, int64_t thread,
                                                   int64_t team) {
  const int64_t tiles = byoc_winograd_tiles(w), terms = byoc_winograd_terms(w);
  const int64_t v_row = byoc_row_floats(terms), v_point = byoc_point_floats(tiles, v_row);
  const int64_t vectors = (terms + BYOC_LANES - 1) / BYOC_LANES, items = tiles * vectors;
  int64_t item = items * thread / team, tile = item / vectors;
  BYOC_NAME(winograd_tile) t = BYOC_NAME(winograd_locate)(w, tile);
  for (int64_t term = item % vectors * BYOC_LANES; item < items * (thread + 1) / team; ++item) {
    const BYOC_NAME(winograd_source) source = BYOC_NAME(winograd_find)(w, group, term, data);
    BYOC_NAME(winograd_take)(w, &source, t, v + tile * v_row + term, v_point);
    term += BYOC_LANES;
    if (term < terms) continue;
    term = 0;
    ++tile;
    BYOC_NAME(winograd_next)(w, &t);
  }
  byoc_wait_for_team(team);
  const int64_t all_panels = (w->of.outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const int64_t at_once = w->outputs_at_once / BYOC_PANEL;
  const int64_t row = byoc_row_floats(w->outputs_at_once);
  const int64_t end = all_panels * (thread + 1) / team;
  t = BYOC_NAME(winograd_locate)(w, 0);
  for (int64_t first = all_panels * thread / team; first < end; first += at_once) {
    const int64_t panels = byoc_min(at_once, end - first);
    BYOC_NAME(winograd_results)(w, group, t, tiles, v, packed, first, panels, products, row, u,
                                data);
  }
}

/* A group of which each thread computes all outputs of some tiles. */
BYOC_NO_INLINE void BYOC_NAME(winograd_by_tiles)(const byoc_winograd_params* w, int64_t group,
                                                 const float* packed, void* const* data, float* v,
                                                 float* products, float* u, int64_t thread,
                                                 int64_t team) {
  const int64_t tiles = byoc_winograd_tiles(w), terms = byoc_winograd_terms(w);
  const int64_t v_row = byoc_row_floats(terms);
  const int64_t all_panels = (w->of.outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const int64_t row = byoc_row_floats(all_panels * BYOC_PANEL);
  const int64_t begin = tiles * thread / team, own = tiles * (thread + 1) / team - begin;
  const int64_t blocks = (own + w->tiles_at_once - 1) / w->tiles_at_once;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = begin + own * block / blocks,
                  count = begin + own * (block + 1) / blocks - first;
    const int64_t v_point = byoc_point_floats(count, v_row);
    const BYOC_NAME(winograd_tile) corner = BYOC_NAME(winograd_locate)(w, first);
    BYOC_NAME(winograd_take_tiles)(w, group, corner, count, data, v, v_row, v_point);
    BYOC_NAME(winograd_results)(w, group, corner, count, v, packed, 0, all_panels, products, row, u,
                                data);
  }
}

BYOC_NO_INLINE void BYOC_NAME(winograd_part)(const byoc_winograd_params* w, void* const* data,
                                             void* scratch, int64_t thread, int64_t team) {
  float* const memory = (float*)scratch;
  const int64_t v_floats = byoc_winograd_source_floats(w);
  const int64_t m_floats = byoc_winograd_product_floats(w);
  const int64_t u_floats = byoc_winograd_late_floats(w);
  float* u = memory + byoc_winograd_scratch_bytes(w) / 4 - (thread + 1) * u_floats;
  const float* packed = (const float*)data[1];
  for (int64_t group = 0; group < w->of.groups; ++group) {
    if (w->over_outputs) {
      /* Others may still read the source of the group before. */
      if (group > 0) byoc_wait_for_team(team);
      BYOC_NAME(winograd_by_outputs)(w, group, packed, data, memory,
                                     memory + v_floats + thread * m_floats, u, thread, team);
    } else {
      float* v = memory + thread * (v_floats + m_floats);
      BYOC_NAME(winograd_by_tiles)(w, group, packed, data, v, v + v_floats, u, thread, team);
    }
    packed += byoc_winograd_packed_floats(w);
  }
}

#endif /* BYOC_WINOGRAD_H_ */
