/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_winograd.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"
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
  const int64_t all_panels = (w->outputs + BYOC_PANEL - 1) / BYOC_PANEL;
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
  const int64_t channels = w->channels, v_row = byoc_row_floats(channels);
  const int64_t v_point = byoc_point_floats(v_rows, v_row);
  const int64_t product_point = byoc_point_floats(v_rows, product_row);
  const int64_t depth = byoc_winograd_depth(w->isa), step = byoc_winograd_step(w->isa);
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
  const int64_t end = byoc_min(w->outputs, (first + panels) * BYOC_PANEL);
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
  const int64_t all_panels = (w->outputs + BYOC_PANEL - 1) / BYOC_PANEL;
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
  const int64_t all_panels = (w->outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const int64_t row = byoc_row_floats(all_panels * BYOC_PANEL);
  const int64_t begin = tiles * thread / team, own = tiles * (thread + 1) / team - begin;
  const int64_t blocks = (own + w->tiles_at_once - 1) / w->tiles_at_once;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = begin + own * block / blocks,
                  count = begin + own * (block + 1) / blocks - first;
    const int64_t v_point = byoc_point_floats(count, v_row);
    const BYOC_NAME(winograd_tile) corner = BYOC_NAME(winograd_locate)(w, first);
    for (int64_t term = 0; term < terms; term += BYOC_LANES) {
      const BYOC_NAME(winograd_source) source = BYOC_NAME(winograd_find)(w, group, term, data);
      BYOC_NAME(winograd_tile) t = corner;
      for (int64_t i = 0; i < count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
        BYOC_NAME(winograd_take)(w, &source, t, v + i * v_row + term, v_point);
      }
    }
    BYOC_NAME(winograd_results)(w, group, corner, count, v, packed, 0, all_panels, products, row, u,
                                data);
  }
}

BYOC_NO_INLINE void BYOC_NAME(winograd_run)(const byoc_winograd_params* w, void* const* data,
                                            float* scratch, int64_t thread, int64_t team) {
  const int64_t v_floats = byoc_winograd_source_floats(w);
  const int64_t m_floats = byoc_winograd_product_floats(w);
  const int64_t u_floats = byoc_winograd_late_floats(w);
  float* u = scratch + byoc_winograd_scratch_bytes(w) / 4 - (thread + 1) * u_floats;
  const float* packed = (const float*)data[1];
  for (int64_t group = 0; group < w->groups; ++group) {
    if (w->over_outputs) {
      /* Others may still read the source of the group before. */
      if (group > 0) byoc_wait_for_team(team);
      BYOC_NAME(winograd_by_outputs)(w, group, packed, data, scratch,
                                     scratch + v_floats + thread * m_floats, u, thread, team);
    } else {
      float* v = scratch + thread * (v_floats + m_floats);
      BYOC_NAME(winograd_by_tiles)(w, group, packed, data, v, v + v_floats, u, thread, team);
    }
    packed += byoc_winograd_packed_floats(w);
  }
}

#include "byoc_vector_end.h"
