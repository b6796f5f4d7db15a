/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_direct.h in panels, made once. */
#ifndef BYOC_DIRECT_PACK_H_
#define BYOC_DIRECT_PACK_H_

#include "byoc_direct_plan.h"

/* params: as of byoc_direct. data: the weights in the order groups, outputs, channels, height,
   width, and what is made of them: group, panel of outputs, height, width, channel, output; the
   last panel of a group is filled up with zeros. */
BYOC_FUNCTION int byoc_direct_pack(const int64_t* params, void* const* data, void* scratch,
                                   int threads, char* error) {
  const byoc_direct_params* p = (const byoc_direct_params*)params;
  const float* weights = (const float*)data[0];
  float* to = (float*)data[1];
  const int64_t filled = byoc_direct_filled(p), taps = byoc_direct_taps(p);
  const int64_t area = p->kernel_height * p->kernel_width;
  (void)scratch;
  (void)threads;
  (void)error;
  for (int64_t group = 0; group < p->groups; ++group) {
    const float* of_group = weights + group * p->outputs * taps;
    for (int64_t first = 0, panel = 0; first < filled; first += panel) {
      panel = byoc_direct_vectors(p, first) * BYOC_DIRECT_LANES;
      for (int64_t place = 0; place < area; ++place) {
        for (int64_t channel = 0; channel < p->channels; ++channel) {
          for (int64_t o = first; o < first + panel; ++o) {
            *to++ = o < p->outputs ? of_group[o * taps + channel * area + place] : 0.f;
          }
        }
      }
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_DIRECT_PACK_H_ */
