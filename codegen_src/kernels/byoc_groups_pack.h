/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_groups.h: for each vector of outputs one vector per row of the kernel,
   channel and tap of that row. */
#ifndef BYOC_GROUPS_PACK_H_
#define BYOC_GROUPS_PACK_H_

#include "byoc_groups_plan.h"

/* params: byoc_groups_params. data: weights in the order groups, outputs, channels, height, width,
   and where they are packed. Lanes without an output are zeros. */
BYOC_FUNCTION int byoc_groups_pack(const int64_t* params, void* const* data, void* scratch,
                                   int threads, char* error) {
  const byoc_groups_params* p = (const byoc_groups_params*)params;
  const float* weights = (const float*)data[0];
  float* to = (float*)data[1];
  const int64_t lanes = byoc_lanes(p->isa), taps = byoc_groups_taps(p);
  const int64_t area = p->kernel_height * p->kernel_width;
  const int64_t parts = byoc_groups_parts(p), vectors = byoc_groups_vectors(p);
  const int64_t at_once = byoc_groups_together(p) * p->outputs, all = p->groups * p->outputs;
  (void)scratch;
  (void)threads;
  (void)error;
  for (int64_t vector = 0; vector < vectors; ++vector) {
    const int64_t begin = vector / parts * at_once, first = begin + vector % parts * lanes;
    const int64_t end = byoc_min(begin + at_once, all);
    for (int64_t row = 0; row < p->kernel_height; ++row) {
      for (int64_t channel = 0; channel < p->channels; ++channel) {
        for (int64_t tap = 0; tap < p->kernel_width; ++tap) {
          const float* from = weights + channel * area + row * p->kernel_width + tap;
          for (int64_t o = first; o < first + lanes; ++o) *to++ = o < end ? from[o * taps] : 0.f;
        }
      }
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_GROUPS_PACK_H_ */
