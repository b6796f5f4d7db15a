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

/* The weights of one phase and channel for `outputs` outputs, `apart` numbers apart, at all points,
   which are written `point` numbers apart; zeros for what is missing of BYOC_WINOGRAD_TOGETHER
   outputs. `taps`: byoc_winograd_taps, known to the compiler. */
BYOC_INLINE void byoc_winograd_transform_taps(const byoc_winograd_params* w, int taps,
                                              const float (*g)[5], int64_t phase,
                                              const float* weights, int64_t apart, int64_t outputs,
                                              float* to, int64_t point) {
  const int64_t n = byoc_winograd_side(w), stride = w->stride;
  float kernel[25][BYOC_WINOGRAD_TOGETHER] = {{0}}, half[5][BYOC_WINOGRAD_TOGETHER];
  for (int i = 0; i < taps; ++i) {
    for (int j = 0; j < taps; ++j) {
      const int64_t y = i * stride + phase / stride, x = j * stride + phase % stride;
      if (y >= w->kernel || x >= w->kernel) continue; /* that phase has fewer */
      for (int64_t o = 0; o < outputs; ++o)
        kernel[i * taps + j][o] = weights[o * apart + y * w->kernel + x];
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
                                           const float* weights, int64_t apart, int64_t outputs,
                                           float* to, int64_t point) {
  if (byoc_winograd_taps(w) == 5) {
    byoc_winograd_transform_taps(w, 5, kByocWinograd2Of5, phase, weights, apart, outputs, to,
                                 point);
  } else {
    byoc_winograd_transform_taps(w, 3, w->m == 4 ? kByocWinograd4 : kByocWinograd2, phase, weights,
                                 apart, outputs, to, point);
  }
}

BYOC_FUNCTION int byoc_winograd_pack_on_thread(const int64_t* params, void* const* data,
                                               void* scratch, int64_t part, int64_t parts) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  const int64_t channels = w->channels, terms = byoc_winograd_terms(w);
  const int64_t taps = w->kernel * w->kernel, points = byoc_winograd_points(w);
  const int64_t panel = byoc_panel(w->isa), panels = (w->outputs + panel - 1) / panel;
  const int64_t blocks = (channels + BYOC_WINOGRAD_DEEP - 1) / BYOC_WINOGRAD_DEEP,
                all = panels * blocks;
  for (int64_t group = 0; group < w->groups; ++group) {
    const float* weights = (const float*)data[0] + group * w->outputs * channels * taps;
    float* packed = (float*)data[1] + group * byoc_winograd_packed_floats(w);
    if (w->late) {
      const byoc_product_pack_params p = {w->isa, w->outputs, channels * 9, 1, channels * 9};
      void* const of_group[] = {(void*)weights, packed};
      byoc_product_pack_on_thread((const int64_t*)&p, of_group, scratch, part, parts);
      continue;
    }
    for (int64_t item = all * part / parts; item < all * (part + 1) / parts; ++item) {
      const int64_t first = item / blocks * panel, begin = item % blocks * BYOC_WINOGRAD_DEEP;
      const int64_t count = byoc_min(channels - begin, BYOC_WINOGRAD_DEEP);
      float transformed[36 * BYOC_WINOGRAD_POINT];
      for (int64_t phase = 0; phase < w->stride * w->stride; ++phase) {
        for (int64_t o = 0; o < panel; o += BYOC_WINOGRAD_TOGETHER) {
          const int64_t left =
              byoc_min(byoc_max(w->outputs - first - o, 0), BYOC_WINOGRAD_TOGETHER);
          const float* from =
              weights + (byoc_min(first + o, w->outputs - 1) * channels + begin) * taps;
          for (int64_t c = 0; c < count; ++c) {
            byoc_winograd_transform(w, phase, from + c * taps, channels * taps, left,
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
  return BYOC_OK;
}

/* params: as of byoc_winograd. data: the weights in the order groups, outputs, channels, rows,
   columns, and what is made of them, in panels: group, point, panel of outputs, phase, channel,
   output. */
BYOC_FUNCTION int byoc_winograd_pack(const int64_t* params, void* const* data, void* scratch,
                                     int threads, char* error) {
  (void)error;
  return byoc_on_team(byoc_winograd_pack_on_thread, params, data, scratch, threads);
}

#endif /* BYOC_WINOGRAD_PACK_H_ */
