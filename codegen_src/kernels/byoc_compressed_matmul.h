/* SPDX-License-Identifier: Apache-2.0
   A matrix product of float32 with constant weights of 8 or 4 bits that share a scale, and perhaps
   a zero point, in groups along the depth:

     dst[m][n] = sum over k of src[m][k] * (weights[n][k] - zero_points[n][g]) * scales[n][g]
                                                                            g = k / group

   For a few rows the weights are read once, from memory, and become floats in registers.
   For more rows each block of them is decompressed into the cache, and multiplied from there.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_COMPRESSED_MATMUL_H_
#define BYOC_COMPRESSED_MATMUL_H_

#include "byoc_compressed_plan.h"

#define BYOC_BODY "byoc_compressed_body.h"
#include "byoc_each_isa.h"

/* For a CPU without AVX2. */
BYOC_FUNCTION float byoc_compressed_weight(const byoc_compressed_params* p, const char* packed,
                                           int64_t k, int64_t column) {
  const int64_t panel = byoc_compressed_panel(p), c = column % panel;
  const char* group = packed + column / panel * byoc_compressed_panel_bytes(p) +
                      k / p->group * byoc_compressed_group_bytes(p);
  const float* head = (const float*)group;
  const char* body = group + byoc_compressed_head(p) * 4;
  float value;
  k %= p->group;
  if (p->bits == 8) {
    value = (float)(int8_t)body[k * panel + c];
  } else {
    const uint8_t pair = (uint8_t)body[(k / 8 * panel + c) * 4 + k % 8 / 2];
    value = (float)((pair >> k % 2 * 4 & 15) ^ 8) - 8;
  }
  return (value - (p->has_zero_points ? head[panel + c] : 0)) * head[c];
}

/* The columns first..last on such a CPU, without post-operations. */
BYOC_FUNCTION void byoc_compressed_plain(const byoc_compressed_params* p, void* const* data,
                                         int64_t first, int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    for (int64_t m = 0; m < p->rows; ++m) {
      const float* src = (const float*)data[0] + m * p->depth;
      float sum = 0;
      for (int64_t k = 0; k < p->depth; ++k) {
        sum += src[k] * byoc_compressed_weight(p, (const char*)data[1], k, n);
      }
      ((float*)data[byoc_compressed_dst(p)])[m * p->columns + n] = sum;
    }
  }
}

BYOC_FUNCTION int byoc_compressed_on_thread(const int64_t* params, void* const* data, void* scratch,
                                            int64_t part, int64_t parts) {
  const byoc_compressed_params* p = (const byoc_compressed_params*)params;
  if (p->isa == 0) {
    byoc_compressed_plain(p, data, p->columns * part / parts, p->columns * (part + 1) / parts);
  } else {
    float* own = (float*)scratch + part * byoc_compressed_thread_floats(p);
    BYOC_FOR_ISA(p->isa, compressed_part, (p, data, own, part, parts));
  }
  return BYOC_OK;
}

/* The kernel. data: source, packed weights, the operands of the post-operations, result. */
BYOC_FUNCTION int byoc_compressed_matmul(const int64_t* params, void* const* data, void* scratch,
                                         int threads, char* error) {
  const byoc_compressed_params* p = (const byoc_compressed_params*)params;
  (void)error;
  return byoc_on_team(byoc_compressed_on_thread, params, data, scratch,
                      byoc_min(threads, p->threads));
}

#endif /* BYOC_COMPRESSED_MATMUL_H_ */
