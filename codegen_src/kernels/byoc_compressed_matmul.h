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

BYOC_FUNCTION void byoc_compressed_run_plain(const byoc_compressed_params* p, void* const* data,
                                             int threads) {
  (void)threads; /* without OpenMP */
  BYOC_OMP(parallel for schedule(static) num_threads(threads))
  for (int64_t n = 0; n < p->columns; ++n) {
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

/* The kernel. data: source, packed weights, the operands of the post-operations, result. */
BYOC_FUNCTION int byoc_compressed_matmul(const int64_t* params, void* const* data, void* scratch,
                                         int threads, char* error) {
  const byoc_compressed_params* p = (const byoc_compressed_params*)params;
  const int team = (int)byoc_min(threads, p->threads);
  (void)error;
  if (p->isa == 0) {
    byoc_compressed_run_plain(p, data, team); /* without post-operations */
  } else {
    BYOC_FOR_ISA(p->isa, compressed_run, (p, data, (float*)scratch, team));
  }
  return BYOC_OK;
}

#endif /* BYOC_COMPRESSED_MATMUL_H_ */
