/* SPDX-License-Identifier: Apache-2.0
   The part of byoc_groups.h that is compiled once per instruction set; no include guard. */

#include "byoc_vector.h"

typedef int BYOC_NAME(lane_numbers) __attribute__((vector_size(BYOC_LANES * 4)));

/* The source of a block: pixels `first` to before `width` of its rows are there. */
typedef struct BYOC_NAME(groups_source) {
  int64_t pixel, row, rows, first, width;
} BYOC_NAME(groups_source);

/* A block of pixels of a row of results, and what it reads. */
typedef struct BYOC_NAME(groups_block) {
  const byoc_groups_params* p;
  const byoc_end* end;
  void* const* data;
  int64_t image, y, x; /* of the first result */
  int pixels;
  BYOC_NAME(groups_source) source;
  const float* src;     /* first pixel of the first row, which may lie beside the source */
  const float* weights; /* of that row */
  float* to;
} BYOC_NAME(groups_block);

/* Lane i of the result is lane at[i] of `v`. */
BYOC_INLINE BYOC_VEC BYOC_NAME(permute)(BYOC_VEC v, BYOC_NAME(lane_numbers) at) {
#ifdef BYOC_SIMD_AVX512
  return (BYOC_VEC)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)at, (__m512)v);
#else
  return (BYOC_VEC)_mm256_permutevar8x32_ps((__m256)v, (__m256i)at);
#endif
}

/* Where each output of groups that are computed at once finds the first channel of its group. */
BYOC_INLINE BYOC_NAME(lane_numbers) BYOC_NAME(groups_spread)(const byoc_groups_params* p) {
  const int is_alone = byoc_groups_together(p) == 1;
  int at[BYOC_LANES];
  BYOC_NAME(lane_numbers) result;
  for (int i = 0; i < BYOC_LANES; ++i) {
    at[i] = is_alone ? 0 : (int)(i / p->outputs * p->channels);
  }
  memcpy(&result, at, sizeof(result));
  return result;
}

/* Post-operations that are not done in registers. */
BYOC_NO_INLINE void BYOC_NAME(groups_finish)(const BYOC_NAME(groups_block) * b, int64_t output,
                                             int lanes, BYOC_VEC* o) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(b->p + 1);
  for (int64_t k = 0; k < b->p->post_ops; ++k) {
    const byoc_post_op* op = &post_ops[k];
    const float* operand = op->operand < 0 ? NULL : (const float*)b->data[op->operand];
    if (operand != NULL && op->form == BYOC_PER_ELEMENT) {
      const byoc_strides* s = &op->strides;
      operand +=
          b->image * s->image + b->y * s->row + b->x * s->pixel + byoc_channel_offset(s, output);
    }
    BYOC_NAME(apply)(op, operand, output, lanes, 1, BYOC_GROUPS_PIXELS, 1, b->pixels, o);
  }
}

/* Pixel `at` of the source of a block, of which `lanes` channels are there. `whole`: all lanes. */
BYOC_INLINE BYOC_VEC BYOC_NAME(groups_pixel)(const int inside, const int whole,
                                             const BYOC_NAME(groups_source) * s, int lanes,
                                             const float* src, int64_t at) {
  if (inside && whole) return BYOC_NAME(load)(src + at * s->pixel);
  if (inside || (s->first + at >= 0 && s->first + at < s->width))
    return BYOC_NAME(load_some)(src + at * s->pixel, lanes);
  return BYOC_NAME(set)(0.f);
}

/* What is the same for all rows of the kernel. */
typedef struct BYOC_NAME(groups_row) {
  int64_t channels, width, stride, dilation; /* of the kernel */
  BYOC_NAME(groups_source) source;
  int lanes; /* of the source */
} BYOC_NAME(groups_row);

/* Adds the products of a row of the kernel with one channel of each group; `to_lanes`: where each
   lane finds it. Taps are taken `wide` at a time, of which each pixel is loaded once; then, where
   there is a `rest`, one by one. */
BYOC_INLINE void BYOC_NAME(groups_taps)(const int wide, const int stride, const int rest,
                                        const int inside, const int spread,
                                        const BYOC_NAME(groups_row) * r,
                                        BYOC_NAME(lane_numbers) to_lanes, const float* src,
                                        const float* w, BYOC_VEC (*sums)[4]) {
  enum { kPixels = BYOC_GROUPS_PIXELS };
  const int64_t width = rest ? r->width : wide;
  int64_t first = 0;
  if (wide > 0) {
    for (; first + wide <= width; first += wide) {
      BYOC_UNROLL
      for (int at = 0; at < (kPixels - 1) * stride + wide; ++at) {
        BYOC_VEC v = BYOC_NAME(groups_pixel)(inside, !spread, &r->source, r->lanes, src,
                                             rest ? first + at : at);
        if (spread) v = BYOC_NAME(permute)(v, to_lanes);
        BYOC_UNROLL
        for (int tap = 0; tap < wide; ++tap) {
          const int i = (at - tap) / stride;
          if (at < tap || (at - tap) % stride != 0 || i >= kPixels) continue;
          sums[i][0] += v * BYOC_NAME(load)(w + tap * BYOC_LANES);
        }
      }
      w += wide * BYOC_LANES;
    }
  }
  if (!rest) return;
  for (; first < width; ++first, w += BYOC_LANES) {
    const BYOC_VEC of_tap = BYOC_NAME(load)(w);
    BYOC_UNROLL
    for (int i = 0; i < kPixels; ++i) {
      const int64_t at = i * r->stride + first * r->dilation;
      BYOC_VEC v = BYOC_NAME(groups_pixel)(inside, !spread, &r->source, r->lanes, src, at);
      if (spread) v = BYOC_NAME(permute)(v, to_lanes);
      sums[i][0] += v * of_tap;
    }
  }
}

/* Vectors `first` to before `last` of a block. `inside`: whether no tap lies beside the source,
   and, without a `spread`, all lanes are channels. */
BYOC_INLINE void BYOC_NAME(groups_vectors)(const int wide, const int stride, const int rest,
                                           const int inside, const int spread,
                                           const BYOC_NAME(groups_block) * b, int64_t first,
                                           int64_t last) {
  enum { kPixels = BYOC_GROUPS_PIXELS };
  const byoc_groups_params* p = b->p;
  /* Copies, which no store of a result can change. */
  const byoc_end end = *b->end;
  const int64_t together = spread ? byoc_groups_together(p) : BYOC_LANES;
  const int64_t parts = spread ? byoc_groups_parts(p) : 1;
  const int64_t channels = spread ? p->channels : 1, outputs = spread ? p->outputs : 1;
  const int64_t of_channel = (wide > 0 && !rest ? wide : p->kernel_width) * BYOC_LANES;
  const int64_t of_vector = byoc_groups_taps(p) * BYOC_LANES;
  const int64_t to_pixel = p->dst.pixel, src_row = b->source.row, rows = b->source.rows;
  const int64_t src_step = byoc_channel_step(&p->src, together * channels);
  const int64_t src_window = byoc_channel_step(&p->src, BYOC_LANES);
  const int64_t to_step = byoc_channel_step(&p->dst, together * outputs);
  const int64_t to_part = byoc_channel_step(&p->dst, BYOC_LANES);
  const int pixels = b->pixels;
  BYOC_NAME(lane_numbers) to_lanes = {0};
  if (spread) to_lanes = BYOC_NAME(groups_spread)(p);
  BYOC_NAME(groups_row) r = {channels, p->kernel_width, p->stride_x, p->dilation_x, b->source, 0};
  const float* w = b->weights + first * of_vector;
  const float* bias = p->has_bias ? (const float*)b->data[2] : NULL;
  int64_t at = first / parts, part = first % parts;
  for (int64_t vector = first; vector < last; ++vector, w += of_vector) {
    const int64_t present = byoc_min(together, p->groups - at * together);
    const int64_t output = at * together * outputs + part * BYOC_LANES;
    const int whole = inside && !spread;
    const int lanes =
        whole ? BYOC_LANES : (int)byoc_min(present * outputs - part * BYOC_LANES, BYOC_LANES);
    const float* src = b->src + at * src_step;
    float* to = b->to + at * to_step + part * to_part;
    BYOC_VEC sums[kPixels][4], start = BYOC_NAME(set)(0.f);
    if (bias != NULL) start = BYOC_NAME(load_some)(bias + output, lanes);
    BYOC_UNROLL
    for (int i = 0; i < kPixels; ++i) sums[i][0] = start;
    const float* of_row = w;
    for (int64_t row = 0; row < rows; ++row, src += src_row) {
      if (!spread) {
        r.lanes = lanes;
        BYOC_NAME(groups_taps)(wide, stride, rest, inside, spread, &r, to_lanes, src, of_row, sums);
        of_row += of_channel;
        continue;
      }
      const float* window = src;
      for (int64_t from = 0; from < channels; from += BYOC_LANES, window += src_window) {
        r.lanes = (int)byoc_min(present * channels - from, BYOC_LANES);
        BYOC_NAME(lane_numbers) of_lanes = to_lanes;
        for (int64_t c = from; c < byoc_min(channels, from + BYOC_LANES); ++c) {
          BYOC_NAME(groups_taps)(wide, stride, rest, inside, spread, &r, of_lanes, window, of_row,
                                 sums);
          of_row += of_channel;
          of_lanes += 1;
        }
      }
    }
    if (end.fits) {
      BYOC_NAME(end_sums)(kPixels, 1, &end, sums);
    } else {
      BYOC_VEC flat[kPixels];
      BYOC_UNROLL
      for (int i = 0; i < kPixels; ++i) flat[i] = sums[i][0];
      BYOC_NAME(groups_finish)(b, output, lanes, flat);
      BYOC_UNROLL
      for (int i = 0; i < kPixels; ++i) sums[i][0] = flat[i];
    }
    BYOC_UNROLL
    for (int i = 0; i < kPixels; ++i) {
      if (inside || i < pixels) BYOC_NAME(store_some)(to + i * to_pixel, sums[i][0], lanes);
    }
    if (++part < parts) continue;
    part = 0;
    ++at;
  }
}

/* A function for each width and stride: the sums of several would not find registers in one. The
   last number says whether channels are spread over the outputs of their groups. */
#define BYOC_GROUPS(wide, stride, rest, spread)                               \
  BYOC_NO_INLINE void BYOC_NAME(groups_##wide##_##stride##_##spread)(         \
      const BYOC_NAME(groups_block) * b, int64_t first, int64_t last) {       \
    BYOC_NAME(groups_vectors)(wide, stride, rest, 1, spread, b, first, last); \
  }                                                                           \
  BYOC_NO_INLINE void BYOC_NAME(groups_edge_##wide##_##stride##_##spread)(    \
      const BYOC_NAME(groups_block) * b, int64_t first, int64_t last) {       \
    BYOC_NAME(groups_vectors)(wide, stride, rest, 0, spread, b, first, last); \
  }
BYOC_GROUPS(5, 1, 0, 0)
BYOC_GROUPS(7, 1, 0, 0)
BYOC_GROUPS(5, 2, 0, 0)
BYOC_GROUPS(7, 2, 0, 0)
BYOC_GROUPS(0, 0, 1, 0)
BYOC_GROUPS(3, 1, 1, 1)
BYOC_GROUPS(3, 2, 1, 1)
BYOC_GROUPS(0, 0, 1, 1)
#undef BYOC_GROUPS

BYOC_INLINE void BYOC_NAME(groups_run)(const BYOC_NAME(groups_block) * b, int64_t first,
                                       int64_t last) {
  const byoc_groups_params* p = b->p;
  const int64_t reach =
      (BYOC_GROUPS_PIXELS - 1) * p->stride_x + (p->kernel_width - 1) * p->dilation_x + 1;
  const int spread = !byoc_groups_is_depthwise(p);
  const int inside = b->pixels == BYOC_GROUPS_PIXELS && b->source.first >= 0 &&
                     b->source.first + reach <= p->width;
  const int64_t whole = spread ? last : byoc_min(last, p->groups / BYOC_LANES);
  const int64_t full = inside ? byoc_max(whole, first) : first;
  const int64_t wide = byoc_groups_wide(p);
#define BYOC_CASE(wide, stride, spread)                                 \
  case 32 * spread + 8 * stride + wide:                                 \
    BYOC_NAME(groups_##wide##_##stride##_##spread)(b, first, full);     \
    BYOC_NAME(groups_edge_##wide##_##stride##_##spread)(b, full, last); \
    break;
  switch (32 * spread + 8 * (wide == 0 ? 0 : p->stride_x) + wide) {
    BYOC_CASE(5, 1, 0)
    BYOC_CASE(7, 1, 0)
    BYOC_CASE(5, 2, 0)
    BYOC_CASE(7, 2, 0)
    BYOC_CASE(0, 0, 0)
    BYOC_CASE(3, 1, 1)
    BYOC_CASE(3, 2, 1)
    BYOC_CASE(0, 0, 1)
    default:
      break;
  }
#undef BYOC_CASE
}

/* Vectors of outputs of blocks of pixels, counted over all images, rows and blocks. */
BYOC_NO_INLINE void BYOC_NAME(groups_items)(const byoc_groups_params* p, int64_t first,
                                            int64_t last, void* const* data) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  const int64_t vectors = byoc_groups_vectors(p), blocks = byoc_groups_blocks(p);
  const float* src = (const float*)data[0];
  float* result = (float*)data[2 + p->has_bias + byoc_operands(post_ops, p->post_ops)];
  byoc_end end = byoc_end_of(post_ops, p->post_ops);
  end.fits = end.fits && end.added == NULL;
  for (int64_t item = first, after; item < last; item = after) {
    const int64_t block = item / vectors, row = block / blocks;
    const int64_t image = row / p->out_height, y = row % p->out_height;
    const int64_t x = block % blocks * BYOC_GROUPS_PIXELS;
    const int64_t top = y * p->stride_y - p->pad_top, left = x * p->stride_x - p->pad_left;
    const int64_t above = top >= 0 ? 0 : (-top + p->dilation_y - 1) / p->dilation_y;
    const int64_t inside = p->height <= top ? 0 : (p->height - 1 - top) / p->dilation_y + 1;
    const int64_t rows = byoc_max(byoc_min(inside, p->kernel_height) - above, 0);
    const BYOC_NAME(groups_block)
        b = {p,
             &end,
             data,
             image,
             y,
             x,
             (int)byoc_min(p->out_width - x, BYOC_GROUPS_PIXELS),
             {p->src.pixel, p->dilation_y * p->src.row, rows, left, p->width},
             src + image * p->src.image + (top + above * p->dilation_y) * p->src.row +
                 left * p->src.pixel,
             (const float*)data[1] + above * p->kernel_width * p->channels * BYOC_LANES,
             result + image * p->dst.image + y * p->dst.row + x * p->dst.pixel};
    after = byoc_min((block + 1) * vectors, last);
    BYOC_NAME(groups_run)(&b, item - block * vectors, after - block * vectors);
  }
}

#include "byoc_vector_end.h"
