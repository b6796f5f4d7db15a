/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_depthwise.h: for each vector of channels one vector per tap. */
#ifndef BYOC_DEPTHWISE_PACK_H_
#define BYOC_DEPTHWISE_PACK_H_

#include "byoc_depthwise_plan.h"

/* params: byoc_depthwise_params. data: weights, tap after tap of one channel after the other, and
   where they are packed. The last vector is filled up with zeros. */
BYOC_FUNCTION int byoc_depthwise_pack(const int64_t* params, void* const* data, void* scratch,
                                      int threads, char* error) {
  const byoc_depthwise_params* p = (const byoc_depthwise_params*)params;
  const float* weights = (const float*)data[0];
  float* to = (float*)data[1];
  const int64_t lanes = byoc_lanes(p->isa), taps = byoc_depthwise_taps(p);
  (void)scratch;
  (void)threads;
  (void)error;
  for (int64_t first = 0; first < p->channels; first += lanes) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t c = first; c < first + lanes; ++c) {
        *to++ = c < p->channels ? weights[c * taps + tap] : 0.f;
      }
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_DEPTHWISE_PACK_H_ */
