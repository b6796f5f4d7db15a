/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_winograd.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"
#include "byoc_winograd_tile_body.h"

/* Products of `rows` tiles with the panels of `outputs` outputs, for all points. */
BYOC_NO_INLINE void BYOC_NAME(winograd_multiply)(const byoc_winograd_params* w, const float* v,
                                                 int64_t v_rows, const float* packed,
                                                 int64_t first_panel, int64_t panels,
                                                 float* products, int64_t product_row) {
  const int64_t points = (int64_t)(w->m + 2) * (w->m + 2), channels = w->channels;
  const int64_t v_row = byoc_row_floats(channels);
  const int64_t all_panels = (w->outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  const byoc_passes passes = byoc_in_passes(v_rows, BYOC_ROWS);
  const int64_t panel = channels * BYOC_PANEL;
  const int far = points * all_panels * panel * (int64_t)sizeof(float) > BYOC_NEAR_WEIGHTS;
  const int64_t lines =
      far && passes.count > 1 ? BYOC_NAME(lines_of_pass)(channels, passes.count) : 0;
  for (int64_t p = 0; p < points; ++p) {
    for (int64_t b = 0; b < panels; ++b) {
      const float* u = packed + (p * all_panels + first_panel + b) * panel;
      const float* next = b + 1 < panels ? u + panel : u + (all_panels - b) * panel;
      for (int64_t pass = 0, first = 0; pass < passes.count; ++pass) {
        const int64_t rows = byoc_pass_rows(&passes, pass);
        BYOC_NAME(fetch)(next, pass, lines);
        BYOC_NAME(product)((int)rows, 1, v + (p * v_rows + first) * v_row, v_row, u, 0, channels,
                           NULL, 0, products + (p * v_rows + first) * product_row + b * BYOC_PANEL,
                           product_row);
        first += rows;
      }
    }
  }
}

BYOC_NO_INLINE void BYOC_NAME(winograd_run)(const byoc_winograd_params* w, int threads,
                                            void* const* data, float* scratch) {
  const float* src = (const float*)data[0];
  const float* packed = (const float*)data[1];
  const int64_t tiles = byoc_winograd_tiles(w), channels = w->channels, outputs = w->outputs;
  const int64_t v_row = byoc_row_floats(channels);
  const int64_t v_floats = byoc_winograd_source_floats(w);
  const int64_t m_floats = byoc_winograd_product_floats(w);
  const int64_t all_panels = (outputs + BYOC_PANEL - 1) / BYOC_PANEL;
  BYOC_OMP(parallel num_threads(threads) if (threads > 1))
  {
    const int64_t thread = byoc_thread(), team = byoc_team();
    (void)threads;
    if (w->over_outputs) {
      float* v = scratch;
      float* products = scratch + v_floats + thread * m_floats;
      const int64_t vectors = (channels + BYOC_LANES - 1) / BYOC_LANES, items = tiles * vectors;
      int64_t item = items * thread / team, tile = item / vectors;
      BYOC_NAME(winograd_tile) t = BYOC_NAME(winograd_locate)(w, tile);
      for (int64_t channel = item % vectors * BYOC_LANES; item < items * (thread + 1) / team;
           ++item) {
        BYOC_NAME(winograd_take)(w, src + byoc_channel_offset(&w->src, channel), t, channel,
                                 v + tile * v_row + channel, tiles * v_row);
        channel += BYOC_LANES;
        if (channel < channels) continue;
        channel = 0;
        ++tile;
        BYOC_NAME(winograd_next)(w, &t);
      }
      BYOC_OMP(barrier)
      const int64_t at_once = w->outputs_at_once / BYOC_PANEL,
                    groups = (all_panels + at_once - 1) / at_once;
      const int64_t row = byoc_row_floats(w->outputs_at_once);
      for (int64_t g = groups * thread / team; g < groups * (thread + 1) / team; ++g) {
        const int64_t first = g * at_once, panels = byoc_min(at_once, all_panels - first);
        BYOC_NAME(winograd_multiply)(w, v, tiles, packed, first, panels, products, row);
        const int64_t end = byoc_min(outputs, (first + panels) * BYOC_PANEL);
        for (int64_t o = first * BYOC_PANEL; o < end; o += BYOC_LANES) {
          const int64_t place = byoc_channel_offset(&w->dst, o);
          BYOC_NAME(winograd_tile) t = BYOC_NAME(winograd_locate)(w, 0);
          for (int64_t i = 0; i < tiles; ++i, BYOC_NAME(winograd_next)(w, &t)) {
            BYOC_NAME(winograd_give)(w, products + i * row + o - first * BYOC_PANEL, tiles * row, t,
                                     o, place, data);
          }
        }
      }
    } else {
      float* v = scratch + thread * (v_floats + m_floats);
      float* products = v + v_floats;
      const int64_t row = byoc_row_floats(all_panels * BYOC_PANEL);
      const int64_t blocks = (tiles + w->tiles_at_once - 1) / w->tiles_at_once;
      for (int64_t block = blocks * thread / team; block < blocks * (thread + 1) / team; ++block) {
        const int64_t first = block * w->tiles_at_once,
                      count = byoc_min(w->tiles_at_once, tiles - first);
        const BYOC_NAME(winograd_tile) corner = BYOC_NAME(winograd_locate)(w, first);
        for (int64_t c = 0; c < channels; c += BYOC_LANES) {
          const float* from = src + byoc_channel_offset(&w->src, c);
          BYOC_NAME(winograd_tile) t = corner;
          for (int64_t i = 0; i < count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
            BYOC_NAME(winograd_take)(w, from, t, c, v + i * v_row + c, count * v_row);
          }
        }
        BYOC_NAME(winograd_multiply)(w, v, count, packed, 0, all_panels, products, row);
        for (int64_t o = 0; o < outputs; o += BYOC_LANES) {
          const int64_t place = byoc_channel_offset(&w->dst, o);
          BYOC_NAME(winograd_tile) t = corner;
          for (int64_t i = 0; i < count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
            BYOC_NAME(winograd_give)(w, products + i * row + o, count * row, t, o, place, data);
          }
        }
      }
    }
  }
}

#include "byoc_vector_end.h"
