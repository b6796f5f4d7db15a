/* SPDX-License-Identifier: Apache-2.0
   A matrix product of float32 with constant weights of 8 or 4 bits that share a scale, and perhaps
   a zero point, in groups along the depth:

     dst[m][n] = sum over k of src[m][k] * (weights[n][k] - zero_points[n][g]) * scales[n][g]
                                                                            g = k / group

   For a few rows the weights are read once, from memory, and become floats in registers.
   For more rows each block of them is decompressed into the cache, and multiplied from there.

   The source may be rounded to 8 bits: each group of a row has a scale, its largest magnitude
   divided by 127, and becomes the whole numbers nearest to what it is in that unit (ties to even).
   The products of a group are summed as integers then, exactly, and

     dst[m][n] = sum over g of scale[m][g] * (scales[n][g] * (sum of integers - zero * sum of
   source))

   from the first group on, each step one multiplication and addition that is rounded once. So the
   bits do not depend on the instruction set, on the threads, or on the other rows; without AVX2 the
   last ones may differ. A group that is not finite makes all results of its row NaN.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_COMPRESSED_MATMUL_H_
#define BYOC_COMPRESSED_MATMUL_H_

#include "byoc_compressed_plan.h"

#define BYOC_BODY "byoc_compressed_integer_body.h"
#include "byoc_each_isa.h"
#if BYOC_HAS_VNNI
#define BYOC_SIMD_VNNI
#define BYOC_BODY "byoc_compressed_integer_body.h"
#include "byoc_each_isa.h"
#undef BYOC_SIMD_VNNI
#endif
#define BYOC_BODY "byoc_compressed_body.h"
#include "byoc_each_isa.h"

/* For a CPU without AVX2: a weight without its scale. */
BYOC_FUNCTION float byoc_compressed_weight(const byoc_compressed_params* p, const char* group,
                                           int64_t k, int64_t c) {
  const int64_t panel = byoc_compressed_panel(p), in_word = 32 / p->bits;
  const float* head = (const float*)group;
  uint32_t word;
  memcpy(&word, group + (byoc_compressed_head(p) + k / in_word * panel + c) * 4, 4);
  word = word >> k % in_word * p->bits & (p->bits == 8 ? 255 : 15);
  return (float)word - (p->bits == 8 ? 128 : 8) - (p->has_zero_points ? head[panel + c] : 0);
}

/* Groups first..last of all rows, as byoc_round_groups_avx2, but in their order. */
BYOC_FUNCTION void byoc_compressed_round(const byoc_compressed_params* p, const float* src,
                                         char* rounded, int64_t first, int64_t last) {
  const float magic = 12582912.f; /* adding it rounds to an integer */
  const int64_t groups = p->depth / p->group;
  for (int64_t i = first; i < last; ++i) {
    const float* from = src + i * p->group;
    char* row = rounded + i / groups * byoc_compressed_rounded_bytes(p);
    int8_t* to = (int8_t*)row + i % groups * p->group;
    byoc_rounded* said = (byoc_rounded*)(row + byoc_compressed_said(p, i % groups));
    int32_t most = 0, sum = 0;
    float inverse;
    for (int64_t k = 0; k < p->group; ++k) {
      int32_t bits;
      memcpy(&bits, from + k, 4);
      bits &= 0x7fffffff;
      most = bits > most ? bits : most;
    }
    said->scale = byoc_compressed_scale(most, &inverse);
    for (int64_t k = 0; k < p->group; ++k) {
      to[k] = (int8_t)(inverse == 0 ? 0 : (from[k] * inverse + magic) - magic);
      sum += to[k];
    }
    byoc_compressed_say(p, sum, said);
  }
}

/* The columns first..last on such a CPU, without post-operations. */
BYOC_FUNCTION void byoc_compressed_plain(const byoc_compressed_params* p, void* const* data,
                                         const char* rounded, int64_t first, int64_t last) {
  const int64_t panel = byoc_compressed_panel(p), groups = p->depth / p->group;
  for (int64_t n = first; n < last; ++n) {
    const char* column = (const char*)data[1] + n / panel * byoc_compressed_panel_bytes(p);
    for (int64_t m = 0; m < p->rows; ++m) {
      const float* src = (const float*)data[0] + m * p->depth;
      const char* row = rounded + m * byoc_compressed_rounded_bytes(p);
      float sum = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const char* group = column + g * byoc_compressed_group_bytes(p);
        float of_group = 0, scale = 1;
        if (p->rounds) scale = ((const byoc_rounded*)(row + byoc_compressed_said(p, g)))->scale;
        for (int64_t k = 0; k < p->group; ++k) {
          const int64_t at = g * p->group + k;
          of_group += (p->rounds ? (float)(int8_t)row[at] : src[at]) *
                      byoc_compressed_weight(p, group, k, n % panel);
        }
        sum += scale * (of_group * ((const float*)group)[n % panel]);
      }
      ((float*)data[byoc_compressed_dst(p)])[m * p->columns + n] = sum;
    }
  }
}

BYOC_FUNCTION int byoc_compressed_on_thread(const int64_t* params, void* const* data, void* scratch,
                                            int64_t part, int64_t parts) {
  const byoc_compressed_params* p = (const byoc_compressed_params*)params;
  const float* src = (const float*)data[0];
  char* rounded = (char*)scratch;
  char* all = rounded + p->rows * byoc_compressed_rounded_bytes(p);
  float* own = (float*)all + part * byoc_compressed_thread_floats(p);
  if (p->rounds) {
    const int64_t groups = p->rows * (p->depth / p->group);
    const int64_t first = groups * part / parts, last = groups * (part + 1) / parts;
    if (p->isa == 0) {
      byoc_compressed_round(p, src, rounded, first, last);
    } else {
      BYOC_FOR_ISA(p->isa, round_groups, (p, src, rounded, first, last));
    }
    byoc_wait_for_team(parts);
  }
  if (p->isa == 0) {
    byoc_compressed_plain(p, data, rounded, p->columns * part / parts,
                          p->columns * (part + 1) / parts);
  } else {
    BYOC_FOR_ISA(p->isa, compressed_part, (p, data, rounded, own, part, parts));
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
