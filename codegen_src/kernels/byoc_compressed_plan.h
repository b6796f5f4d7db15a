/* SPDX-License-Identifier: Apache-2.0
   Sizes and layouts of the product with compressed weights, byoc_compressed_matmul.h, and these
   weights in the order in which it reads them. */
#ifndef BYOC_COMPRESSED_PLAN_H_
#define BYOC_COMPRESSED_PLAN_H_

#include "byoc_copy.h"
#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* Behind it stand the post-operations. */
typedef struct __attribute__((may_alias)) byoc_compressed_params {
  int64_t isa; /* byoc_isa, or 0 for a CPU without AVX2 */
  int64_t rows, depth, columns;
  int64_t
      group;    /* weights along the depth that share a scale; a multiple of 8, divides the depth */
  int64_t bits; /* of a weight: 8 or 4 */
  int64_t has_zero_points;
  int64_t scale_bits; /* of a scale and of a zero point: 32, or 16 for numbers of float16 */
  int64_t rounds;     /* whether sources are rounded to 8 bits, and multiplied as integers */
  int64_t has_vnni;   /* for such products */
  int64_t threads;    /* for which there is scratch */
  int64_t post_ops;
} byoc_compressed_params;

/* Packed weights are panels of four vectors of columns. In a panel, for each group:

     scales[panel], zero_points[panel]   float or float16; the latter only if there are any
     8 bits: uint32_t weights[group / 4][panel]
     4 bits: uint32_t weights[group / 8][panel]

   In each word lie the weights of neighbours along the depth, the lowest bits first, as what they
   are above the least number of so many bits. */
BYOC_FUNCTION int64_t byoc_compressed_panel(const byoc_compressed_params* p) {
  return 4 * byoc_lanes(p->isa);
}
BYOC_FUNCTION int64_t byoc_compressed_panels(const byoc_compressed_params* p) {
  return (p->columns + byoc_compressed_panel(p) - 1) / byoc_compressed_panel(p);
}
/* Bytes in front of a group's weights. */
BYOC_FUNCTION int64_t byoc_compressed_head(const byoc_compressed_params* p) {
  return (p->has_zero_points ? 2 : 1) * byoc_compressed_panel(p) * p->scale_bits / 8;
}
BYOC_FUNCTION int64_t byoc_compressed_group_bytes(const byoc_compressed_params* p) {
  return byoc_compressed_head(p) + p->group * byoc_compressed_panel(p) * p->bits / 8;
}
BYOC_FUNCTION int64_t byoc_compressed_panel_bytes(const byoc_compressed_params* p) {
  return p->depth / p->group * byoc_compressed_group_bytes(p);
}
BYOC_FUNCTION int64_t byoc_compressed_packed_bytes(const byoc_compressed_params* p) {
  return byoc_compressed_panels(p) * byoc_compressed_panel_bytes(p);
}

/* More rows than this are multiplied with weights that have been decompressed into the cache. */
BYOC_FUNCTION int64_t byoc_compressed_direct_rows(const byoc_compressed_params* p) {
  return p->isa == BYOC_AVX512 ? 16 : p->isa == BYOC_AVX2 ? 2 : 0;
}
/* Groups that are multiplied at a time: at most 64 weights of each column where they are
   decompressed, 256 where they stay as they are. */
BYOC_FUNCTION int64_t byoc_compressed_block_groups(const byoc_compressed_params* p) {
  const int64_t groups = p->depth / p->group, most = (p->rounds ? 256 : 64) / p->group;
  return byoc_max(1, byoc_min(groups, most));
}
/* Rows that are computed at a time, at most. */
#define BYOC_COMPRESSED_ROWS 128
/* In how many chunks the rows are computed: in more where there are few panels, so that threads end
   together. */
BYOC_FUNCTION int64_t byoc_compressed_chunks(const byoc_compressed_params* p) {
  const int64_t chunks = (p->rows + BYOC_COMPRESSED_ROWS - 1) / BYOC_COMPRESSED_ROWS;
  const int64_t tasks = chunks * byoc_compressed_panels(p);
  const int is_uneven = p->threads > 1 && tasks % p->threads != 0 && tasks < 16 * p->threads;
  return is_uneven && p->rows >= 24 * p->threads ? chunks * p->threads : chunks;
}
/* Floats that a thread needs for its sums and for decompressed weights. */
BYOC_FUNCTION int64_t byoc_compressed_thread_floats(const byoc_compressed_params* p) {
  const int64_t rows = byoc_min(p->rows, BYOC_COMPRESSED_ROWS);
  const int64_t depth = byoc_compressed_block_groups(p) * p->group;
  const int is_direct = p->rows <= byoc_compressed_direct_rows(p);
  /* Rounded sources meet weights as bytes. */
  return (rows + (p->rounds ? depth / 4 : is_direct ? 0 : depth)) * byoc_compressed_panel(p);
}

/* What is said about a group of a rounded row: its numbers are the bytes times `scale`. `start`:
   what the sum of products begins with, since weights are stored above the least number. */
typedef struct __attribute__((may_alias)) byoc_rounded {
  float scale, inverse; /* what the numbers are multiplied by before they are rounded */
  float sum;            /* of the bytes */
  int32_t start;
} byoc_rounded;
typedef int32_t __attribute__((may_alias, aligned(1))) byoc_four;

/* A rounded row: its bytes, and behind them what is said about each group. Of each eight bytes that
   meet weights of 4 bits, the even ones come first, as they lie in the words of weights. */
BYOC_FUNCTION int64_t byoc_compressed_said(const byoc_compressed_params* p, int64_t group) {
  return p->depth + group * (int64_t)sizeof(byoc_rounded);
}
BYOC_FUNCTION int64_t byoc_compressed_rounded_bytes(const byoc_compressed_params* p) {
  return p->rounds ? byoc_round_up(byoc_compressed_said(p, p->depth / p->group), 64) : 0;
}
/* The scale of a group whose largest magnitude has these bits, and its inverse: no number is beyond
   127 then. NaN and 0 if one of them is not finite. Inline, as a call from code with vectors waits
   for their upper halves. */
BYOC_INLINE void byoc_compressed_scale(int32_t most, byoc_rounded* said) {
  const float least = 1.17549435e-38f; /* normal, as is its inverse */
  float largest;
  memcpy(&largest, &most, sizeof(largest));
  const float scale = largest / 127 > least ? largest / 127 : least;
  const int is_finite = most < 0x7f800000;
  said->inverse = is_finite ? 1 / scale : 0;
  said->scale = is_finite ? scale : __builtin_nanf("");
}
BYOC_INLINE void byoc_compressed_say(const byoc_compressed_params* p, int32_t sum,
                                     byoc_rounded* said) {
  const int is_signed = p->bits == 8 && !p->has_vnni;
  said->sum = (float)sum;
  said->start = is_signed ? 0 : -sum * (p->bits == 8 ? 128 : 8);
}
/* How often the rounded rows are there: once for each thread where there are so few that a thread
   has rounded all of them before it would have waited for the others. */
BYOC_FUNCTION int64_t byoc_compressed_copies(const byoc_compressed_params* p) {
  return p->rows * p->depth <= 8192 ? p->threads : 1;
}
/* The scratch memory: the rounded rows, and what each thread needs. */
BYOC_FUNCTION int64_t byoc_compressed_scratch_bytes(const byoc_compressed_params* p) {
  return byoc_compressed_copies(p) * p->rows * byoc_compressed_rounded_bytes(p) +
         p->threads * byoc_compressed_thread_floats(p) * 4;
}
/* The last of the data. */
BYOC_FUNCTION int64_t byoc_compressed_dst(const byoc_compressed_params* p) {
  return 2 + byoc_operands((const byoc_post_op*)(p + 1), p->post_ops);
}

/* Number `i` in front of a group's weights: a scale, and behind those of the panel a zero point. */
BYOC_FUNCTION float byoc_compressed_said_of(const byoc_compressed_params* p, const char* group,
                                            int64_t i) {
  return p->scale_bits == 16 ? byoc_from_float16(((const uint16_t*)group)[i])
                             : ((const float*)group)[i];
}
BYOC_FUNCTION void byoc_compressed_say_of(const byoc_compressed_params* p, char* group, int64_t i,
                                          float number) {
  if (p->scale_bits == 16) {
    ((uint16_t*)group)[i] = byoc_to_float16(number);
  } else {
    ((float*)group)[i] = number;
  }
}

BYOC_FUNCTION void byoc_compressed_pack_part(const byoc_compressed_params* p, void* const* data,
                                             int64_t part, int64_t parts) {
  const uint8_t* weights = (const uint8_t*)data[0];
  const float* scales = (const float*)data[1];
  const float* zero_points = p->has_zero_points ? (const float*)data[2] : NULL;
  char* packed = (char*)data[p->has_zero_points ? 3 : 2];
  const int64_t panel = byoc_compressed_panel(p), panels = byoc_compressed_panels(p);
  const int64_t groups = p->depth / p->group, row_bytes = p->depth * p->bits / 8;
  for (int64_t i = panels * part / parts; i < panels * (part + 1) / parts; ++i) {
    char* to = packed + i * byoc_compressed_panel_bytes(p);
    memset(to, 0, (size_t)byoc_compressed_panel_bytes(p));
    for (int64_t g = 0; g < groups; ++g, to += byoc_compressed_group_bytes(p)) {
      char* body = to + byoc_compressed_head(p);
      for (int64_t c = 0; c < panel && i * panel + c < p->columns; ++c) {
        const int64_t column = i * panel + c;
        const uint8_t* row = weights + column * row_bytes + g * p->group * p->bits / 8;
        byoc_compressed_say_of(p, to, c, scales[column * groups + g]);
        if (zero_points != NULL) {
          byoc_compressed_say_of(p, to, panel + c, zero_points[column * groups + g]);
        }
        for (int64_t k = 0; k < p->group * p->bits / 8; k += 4) {
          uint32_t word;
          memcpy(&word, row + k, 4);
          word ^= p->bits == 8 ? 0x80808080u : 0x88888888u; /* from two's complement */
          memcpy(body + k * panel + c * 4, &word, 4);
        }
      }
    }
  }
}

/* params: as of byoc_compressed_matmul. data: the weights, a row for each column of the product, of
   8 bits signed or of 4 bits in two's complement, the lower half of a byte first; scales, a row of
   groups for each column; zero points likewise, if there are any; what is made of them. */
BYOC_KERNEL(compressed_pack, byoc_compressed_params, threads)

#endif /* BYOC_COMPRESSED_PLAN_H_ */
