/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_recurrent.h in the form that it reads. */
#ifndef BYOC_RECURRENT_PACK_H_
#define BYOC_RECURRENT_PACK_H_

#include "byoc_recurrent_plan.h"

/* A panel of the units of a gate: `weights` has a row of `depth` numbers for each. */
BYOC_FUNCTION void byoc_recurrent_pack_panel(const float* weights, int64_t units, int64_t depth,
                                             int64_t panel, float* to) {
  enum { kDeep = 16 }; /* a line of the cache */
  if (units < panel) memset(to, 0, (size_t)(panel * depth) * 4);
  for (int64_t top = 0; top < depth; top += kDeep) {
    const int64_t bottom = byoc_min(top + kDeep, depth);
    for (int64_t u = 0; u < units; ++u) {
      const float* row = weights + u * depth;
      for (int64_t k = top; k < bottom; ++k) to[k * panel + u] = row[k];
    }
  }
}

/* The same of weights of 16 or 8 bits. */
BYOC_FUNCTION void byoc_recurrent_pack_narrow(int64_t bits, const char* weights, int64_t units,
                                              int64_t depth, int64_t panel, char* to) {
  memset(to, 0, (size_t)((depth + 1) / 2 * panel * bits / 4));
  for (int64_t u = 0; u < units; ++u) {
    const char* row = weights + u * depth * bits / 8;
    for (int64_t k = 0; k < depth; ++k) {
      if (bits == 8) {
        to[k * panel + u] = row[k];
      } else {
        memcpy(to + (k / 2 * panel + u) * 4 + k % 2 * 2, row + k * 2, 2);
      }
    }
  }
}

/* The panel `place` of a direction, whose weights begin at a row of all of them. */
BYOC_FUNCTION void byoc_recurrent_pack_at(const byoc_recurrent_shape* s, const void* weights,
                                          int64_t row, int64_t units, int64_t depth, int64_t place,
                                          float* to) {
  const int64_t panel = byoc_panel(s->isa);
  const char* from = (const char*)weights + row * depth * s->bits / 8;
  to += place * byoc_recurrent_panel(s, depth);
  if (s->bits == 32) {
    byoc_recurrent_pack_panel((const float*)from, units, depth, panel, to);
  } else {
    byoc_recurrent_pack_narrow(s->bits, from, units, depth, panel, (char*)to);
  }
}

/* Some panels of all of them. */
BYOC_FUNCTION int byoc_recurrent_pack_part(const int64_t* params, void* const* data, void* scratch,
                                           int64_t part, int64_t parts) {
  const byoc_recurrent_shape* s = (const byoc_recurrent_shape*)params;
  const byoc_recurrent_packed at = byoc_recurrent_layout(s);
  const int64_t panel = byoc_panel(s->isa), blocks = byoc_recurrent_blocks(s);
  const int64_t gates = byoc_gates(s->cell), units = byoc_recurrent_units(s), hidden = s->hidden;
  const int64_t items = s->directions * blocks * gates;
  const float* bias = s->has_bias ? (const float*)data[2] : NULL;
  const float* peepholes = s->has_peepholes ? (const float*)data[2 + s->has_bias] : NULL;
  const int narrowest = s->bits == 8;
  const float* scales = narrowest ? (const float*)data[2 + s->has_bias + s->has_peepholes] : NULL;
  float* packed = (float*)data[2 + s->has_bias + s->has_peepholes + narrowest];
  (void)scratch;
  for (int64_t item = items * part / parts; item < items * (part + 1) / parts; ++item) {
    const int64_t gate = item % gates, block = item / gates % blocks, d = item / gates / blocks;
    const int64_t first = block * panel, count = byoc_min(panel, hidden - first);
    const int64_t row = (d * gates + gate) * hidden + first, place = block * gates + gate;
    float* to = packed + d * at.floats;
    byoc_recurrent_pack_at(s, data[0], row, count, s->input, place, to + at.source);
    byoc_recurrent_pack_at(s, data[1], row, count, hidden, place, to + at.state);
    for (int64_t u = 0; u < panel; ++u) {
      /* of the source; that of the states stands behind those of all gates */
      const int64_t at_bias = (2 * d * gates + gate) * hidden + first + u;
      if (scales != NULL) {
        to[at.scales + place * panel + u] = u < count ? scales[at_bias] : 0;
        to[at.state_scales + place * panel + u] = u < count ? scales[at_bias + gates * hidden] : 0;
      }
      const int given = bias != NULL && u < count;
      const float of_source = given ? bias[at_bias] : 0;
      const float of_state = given ? bias[at_bias + gates * hidden] : 0;
      const int apart = s->cell == BYOC_LBR_GRU && gate == 2;
      to[at.bias + place * panel + u] = of_source + (apart ? 0 : of_state);
      if (apart) to[at.state_bias + first + u] = of_state;
    }
    for (int64_t k = gate; k < 3 && peepholes != NULL; k += gates) {
      for (int64_t u = 0; u < panel; ++u) {
        to[at.peepholes + k * units + first + u] =
            u < count ? peepholes[(3 * d + k) * hidden + first + u] : 0;
      }
    }
  }
  return BYOC_OK;
}

/* params: byoc_recurrent_shape. data, as ONNX has them: weights of the source [directions, gates *
   hidden, input] and of the states, of `bits` bits; biases of both [directions, 2 * gates * hidden]
   and peepholes [directions, 3 * hidden] if there are such; scales as biases for 8 bits; and what
   is made of them. */
BYOC_FUNCTION int byoc_recurrent_pack(const int64_t* params, void* const* data, void* scratch,
                                      int threads, char* error) {
  (void)error;
  return byoc_on_team(byoc_recurrent_pack_part, params, data, scratch, threads);
}

#endif /* BYOC_RECURRENT_PACK_H_ */
