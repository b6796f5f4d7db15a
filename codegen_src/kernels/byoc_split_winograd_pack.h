/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_split_winograd.h, transformed, split into parts and put into tiles, once. */
#ifndef BYOC_SPLIT_WINOGRAD_PACK_H_
#define BYOC_SPLIT_WINOGRAD_PACK_H_

#include "byoc_split_pack.h"
#include "byoc_split_winograd_body.h"
#include "byoc_winograd_pack.h"

BYOC_FUNCTION int byoc_split_winograd_pack_on_thread(const int64_t* params, void* const* data,
                                                     void* scratch, int64_t part, int64_t parts) {
  const byoc_winograd_params* w = (const byoc_winograd_params*)params;
  const byoc_split_params p = byoc_split_winograd_product(w);
  const int64_t panels = byoc_split_winograd_panels(w);
  const int64_t blocks = panels * p.chunks;
  const int64_t size = byoc_split_chunk_size(&p, BYOC_SPLIT_PANEL), channels = w->channels;
  const int64_t of_point = (int64_t)byoc_split_packed_bytes(&p) / 2;
  (void)scratch;
  for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
    enum { kApart = BYOC_TILE_DEPTH * BYOC_SPLIT_PANEL + BYOC_WINOGRAD_TOGETHER };
    const int64_t panel = block / p.chunks, chunk = block % p.chunks;
    const int64_t first = panel * BYOC_SPLIT_PANEL, begin = chunk * BYOC_TILE_DEPTH;
    const int64_t count = byoc_min(channels - begin, BYOC_TILE_DEPTH);
    const int64_t columns = byoc_min(w->outputs - first, BYOC_SPLIT_PANEL);
    const int64_t of_chunk = byoc_split_chunk_size(&p, columns);
    float points[BYOC_POINTS * kApart];
    if (count < BYOC_TILE_DEPTH) memset(points, 0, sizeof(points));
    for (int64_t o = 0; o < columns; o += BYOC_WINOGRAD_TOGETHER) {
      const float* from = (const float*)data[0] + ((first + o) * channels + begin) * 9;
      for (int64_t c = 0; c < count; ++c) {
        byoc_winograd_transform(w, /*phase=*/0, from + c * 9, channels * 9,
                                byoc_min(columns - o, BYOC_WINOGRAD_TOGETHER),
                                points + c * BYOC_SPLIT_PANEL + o, kApart);
      }
    }
    byoc_split_winograd_pack_chunk(points, kApart, columns,
                                   (uint16_t*)data[1] + panel * p.chunks * size + chunk * of_chunk,
                                   of_point);
  }
  return BYOC_OK;
}

/* params: byoc_winograd_params. data: the weights in the order outputs, channels, 3, 3, and what is
   made of them: point, panel of outputs, and the rest as in byoc_split_pack. */
BYOC_FUNCTION int byoc_split_winograd_pack(const int64_t* params, void* const* data, void* scratch,
                                           int threads, char* error) {
  (void)error;
  byoc_split_use_tiles();
  return byoc_on_team(byoc_split_winograd_pack_on_thread, params, data, scratch, threads);
}

#endif /* BYOC_SPLIT_WINOGRAD_PACK_H_ */
