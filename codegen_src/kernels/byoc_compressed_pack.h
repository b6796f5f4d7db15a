/* SPDX-License-Identifier: Apache-2.0
   Compressed weights in the order in which byoc_compressed_matmul.h reads them. */
#ifndef BYOC_COMPRESSED_PACK_H_
#define BYOC_COMPRESSED_PACK_H_

#include "byoc_compressed_plan.h"

BYOC_FUNCTION int byoc_compressed_pack_on_thread(const int64_t* params, void* const* data,
                                                 void* scratch, int64_t part, int64_t parts) {
  const byoc_compressed_params* p = (const byoc_compressed_params*)params;
  const uint8_t* weights = (const uint8_t*)data[0];
  const float* scales = (const float*)data[1];
  const float* zero_points = p->has_zero_points ? (const float*)data[2] : NULL;
  char* packed = (char*)data[p->has_zero_points ? 3 : 2];
  const int64_t panel = byoc_compressed_panel(p), panels = byoc_compressed_panels(p);
  const int64_t groups = p->depth / p->group, row_bytes = p->depth * p->bits / 8;
  (void)scratch;
  for (int64_t i = panels * part / parts; i < panels * (part + 1) / parts; ++i) {
    char* to = packed + i * byoc_compressed_panel_bytes(p);
    memset(to, 0, (size_t)byoc_compressed_panel_bytes(p));
    for (int64_t g = 0; g < groups; ++g, to += byoc_compressed_group_bytes(p)) {
      float* head = (float*)to;
      char* body = to + byoc_compressed_head(p) * 4;
      for (int64_t c = 0; c < panel && i * panel + c < p->columns; ++c) {
        const int64_t column = i * panel + c;
        const uint8_t* row = weights + column * row_bytes + g * p->group * p->bits / 8;
        head[c] = scales[column * groups + g];
        if (zero_points != NULL) head[panel + c] = zero_points[column * groups + g];
        for (int64_t k = 0; k < p->group * p->bits / 8; k += 4) {
          uint32_t word;
          memcpy(&word, row + k, 4);
          word ^= p->bits == 8 ? 0x80808080u : 0x88888888u; /* from two's complement */
          memcpy(body + k * panel + c * 4, &word, 4);
        }
      }
    }
  }
  return BYOC_OK;
}

/* params: as of byoc_compressed_matmul. data: the weights, a row for each column of the product, of
   8 bits signed or of 4 bits in two's complement, the lower half of a byte first; scales, a row of
   groups for each column; zero points likewise, if there are any; what is made of them. */
BYOC_FUNCTION int byoc_compressed_pack(const int64_t* params, void* const* data, void* scratch,
                                       int threads, char* error) {
  (void)error;
  return byoc_on_team(byoc_compressed_pack_on_thread, params, data, scratch, threads);
}

#endif /* BYOC_COMPRESSED_PACK_H_ */
