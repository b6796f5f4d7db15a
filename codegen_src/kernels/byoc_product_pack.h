/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_product.h in panels, made once. */
#ifndef BYOC_PRODUCT_PACK_H_
#define BYOC_PRODUCT_PACK_H_

#include "byoc_product_plan.h"

BYOC_FUNCTION int byoc_product_pack_on_thread(const int64_t* params, void* const* data,
                                              void* scratch, int64_t part, int64_t parts) {
  const byoc_product_pack_params* p = (const byoc_product_pack_params*)params;
  const float* weights = (const float*)data[0];
  float* packed = (float*)data[1];
  const int64_t panel = byoc_panel(p->isa), depth = p->depth;
  const int64_t panels = (p->columns + panel - 1) / panel;
  enum { kDeep = 16 }; /* a line of the cache where the weights are transposed */
  (void)scratch;
  for (int64_t b = panels * part / parts; b < panels * (part + 1) / parts; ++b) {
    const int64_t first = b * panel;
    const int64_t columns = byoc_min(panel, p->columns - first);
    for (int64_t top = 0; top < depth; top += kDeep) {
      const int64_t bottom = byoc_min(top + kDeep, depth);
      float* to = packed + first * depth;
      if (columns < panel) memset(to + top * panel, 0, (size_t)((bottom - top) * panel) * 4);
      if (p->across == 1) {
        for (int64_t k = top; k < bottom; ++k) {
          memcpy(to + k * panel, weights + k * p->down + first, (size_t)columns * 4);
        }
        continue;
      }
      for (int64_t n = 0; n < columns; ++n) {
        const float* column = weights + (first + n) * p->across;
        /* More columns than the hardware follows: it takes twice as long without this. */
        if (bottom < depth) __builtin_prefetch(column + bottom * p->down);
        for (int64_t k = top; k < bottom; ++k) to[k * panel + n] = column[k * p->down];
      }
    }
  }
  return BYOC_OK;
}

/* params: byoc_product_pack_params. data: the weights, and what is made of them: panel of columns,
   depth, column; the last panel is filled up with zeros. */
BYOC_FUNCTION int byoc_product_pack(const int64_t* params, void* const* data, void* scratch,
                                    int threads, char* error) {
  (void)error;
  return byoc_on_team(byoc_product_pack_on_thread, params, data, scratch, threads);
}

#endif /* BYOC_PRODUCT_PACK_H_ */
