/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_winograd.h, transformed once. */
#ifndef BYOC_WINOGRAD_PACK_H_
#define BYOC_WINOGRAD_PACK_H_

#include "byoc_winograd_plan.h"

/* params: as of byoc_winograd. data: the weights in the order outputs, channels, 3, 3, and what
   is made of them, in panels: point, panel of outputs, channel, output. */
BYOC_FUNCTION int byoc_winograd_pack(const int64_t* params, void* const* data, void* scratch,
                                     int threads, char* error) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  const float* weights = (const float*)data[0];
  float* packed = (float*)data[1];
  static const float kG4[6][3] = {{1, 0, 0},
                                  {-1.f / 3, 1.f / 3, -1.f / 3},
                                  {1.f / 3, 1.f / 3, 1.f / 3},
                                  {-16.f / 15, -8.f / 15, -4.f / 15},
                                  {1.f / 15, -2.f / 15, 4.f / 15},
                                  {0, 0, 1}};
  static const float kG2[6][3] = {{-1, 0, 0}, {.5f, .5f, .5f}, {.5f, -.5f, .5f},
                                  {0, 0, 1},  {0, 0, 0},       {0, 0, 0}};
  const float (*g)[3] = w->m == 4 ? kG4 : kG2;
  const int64_t n = w->m + 2;
  const int64_t panel = byoc_panel(w->isa), channels = w->channels;
  const int64_t panels = (w->outputs + panel - 1) / panel;
  (void)scratch;
  (void)error;
  (void)threads; /* without OpenMP */
  BYOC_OMP(parallel for schedule(static) num_threads(threads))
  for (int64_t o = 0; o < panels * panel; ++o) {
    for (int64_t c = 0; c < channels; ++c) {
      float half[6][3], u[6][6];
      memset(u, 0, sizeof(u));
      if (o < w->outputs) {
        const float* kernel = weights + (o * channels + c) * 9;
        for (int64_t i = 0; i < n; ++i) {
          for (int j = 0; j < 3; ++j) {
            half[i][j] = g[i][0] * kernel[j] + g[i][1] * kernel[3 + j] + g[i][2] * kernel[6 + j];
          }
        }
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            u[i][j] = half[i][0] * g[j][0] + half[i][1] * g[j][1] + half[i][2] * g[j][2];
          }
        }
      }
      for (int64_t p = 0; p < n * n; ++p) {
        packed[((p * panels + o / panel) * channels + c) * panel + o % panel] = u[p / n][p % n];
      }
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_WINOGRAD_PACK_H_ */
