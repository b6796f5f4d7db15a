/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_winograd.h, transformed once. */
#ifndef BYOC_WINOGRAD_PACK_H_
#define BYOC_WINOGRAD_PACK_H_

#include "byoc_product_pack.h"
#include "byoc_winograd_plan.h"

enum {
  BYOC_WINOGRAD_TOGETHER = 16, /* outputs that are transformed together; divides a panel */
  BYOC_WINOGRAD_DEEP = 16,     /* channels whose results are written together, point by point */
  BYOC_WINOGRAD_POINT = BYOC_WINOGRAD_DEEP * 32 + 16 /* numbers; not on the same lines of a cache */
};

/* G of F(4x4, 3x3) */
static const float kByocWinograd4[6][3] = {{1, 0, 0},
                                           {-1.f / 3, 1.f / 3, -1.f / 3},
                                           {1.f / 3, 1.f / 3, 1.f / 3},
                                           {-16.f / 15, -8.f / 15, -4.f / 15},
                                           {1.f / 15, -2.f / 15, 4.f / 15},
                                           {0, 0, 1}};

/* The 3 x 3 weights of `outputs` outputs, `apart` numbers apart, at (m + 2)^2 points, which are
   written `point` numbers apart; zeros for what is missing of BYOC_WINOGRAD_TOGETHER outputs. */
static inline void byoc_winograd_transform(const float (*g)[3], int64_t n, const float* weights,
                                           int64_t apart, int64_t outputs, float* to,
                                           int64_t point) {
  float kernel[9][BYOC_WINOGRAD_TOGETHER] = {{0}}, half[3][BYOC_WINOGRAD_TOGETHER];
  for (int64_t o = 0; o < outputs; ++o) {
    for (int i = 0; i < 9; ++i) kernel[i][o] = weights[o * apart + i];
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int o = 0; o < BYOC_WINOGRAD_TOGETHER; ++o) {
        half[j][o] =
            g[i][0] * kernel[j][o] + g[i][1] * kernel[3 + j][o] + g[i][2] * kernel[6 + j][o];
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      float* u = to + (i * n + j) * point;
      for (int o = 0; o < BYOC_WINOGRAD_TOGETHER; ++o) {
        u[o] = half[0][o] * g[j][0] + half[1][o] * g[j][1] + half[2][o] * g[j][2];
      }
    }
  }
}

/* params: as of byoc_winograd. data: the weights in the order outputs, channels, 3, 3, and what
   is made of them, in panels: point, panel of outputs, channel, output. */
BYOC_FUNCTION int byoc_winograd_pack(const int64_t* params, void* const* data, void* scratch,
                                     int threads, char* error) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  const float* weights = (const float*)data[0];
  float* packed = (float*)data[1];
  static const float kG2[6][3] = {{-1, 0, 0}, {.5f, .5f, .5f}, {.5f, -.5f, .5f},
                                  {0, 0, 1},  {0, 0, 0},       {0, 0, 0}};
  const float (*g)[3] = w->m == 4 ? kByocWinograd4 : kG2;
  const int64_t n = w->m + 2;
  if (w->late) {
    const byoc_product_pack_params p = {w->isa, w->outputs, w->channels * 9, 1, w->channels * 9};
    return byoc_product_pack((const int64_t*)&p, data, scratch, threads, error);
  }
  const int64_t panel = byoc_panel(w->isa), channels = w->channels;
  const int64_t panels = (w->outputs + panel - 1) / panel;
  (void)scratch;
  (void)error;
  (void)threads; /* without OpenMP */
  const int64_t blocks = (channels + BYOC_WINOGRAD_DEEP - 1) / BYOC_WINOGRAD_DEEP;
  BYOC_OMP(parallel for schedule(static) num_threads(threads))
  for (int64_t block = 0; block < panels * blocks; ++block) {
    const int64_t first = block / blocks * panel, begin = block % blocks * BYOC_WINOGRAD_DEEP;
    const int64_t count = byoc_min(channels - begin, BYOC_WINOGRAD_DEEP);
    float points[36 * BYOC_WINOGRAD_POINT];
    for (int64_t o = 0; o < panel; o += BYOC_WINOGRAD_TOGETHER) {
      const int64_t left = byoc_min(byoc_max(w->outputs - first - o, 0), BYOC_WINOGRAD_TOGETHER);
      const float* from = weights + (byoc_min(first + o, w->outputs - 1) * channels + begin) * 9;
      for (int64_t c = 0; c < count; ++c) {
        byoc_winograd_transform(g, n, from + c * 9, channels * 9, left, points + c * panel + o,
                                BYOC_WINOGRAD_POINT);
      }
    }
    for (int64_t point = 0; point < n * n; ++point) {
      memcpy(packed + (point * panels * channels + first / panel * channels + begin) * panel,
             points + point * BYOC_WINOGRAD_POINT, (size_t)(count * panel) * sizeof(float));
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_WINOGRAD_PACK_H_ */
