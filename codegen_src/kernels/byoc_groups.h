/* SPDX-License-Identifier: Apache-2.0
   Convolution in two dimensions, float32, of groups of few channels: those of a depthwise one have
   one channel and one output each.

   A vector runs across the outputs of several groups, for a few pixels of a row of results at once.
   Its products take one channel of each of these groups, which a permutation of the lanes spreads
   over the group's outputs; a depthwise convolution needs none. Along a row of the kernel, each
   pixel of the source is loaded once for all results, and so is each weight. */
#ifndef BYOC_GROUPS_H_
#define BYOC_GROUPS_H_

#include "byoc_post_ops.h"

/* The parameters of the kernel are those of the convolution. Its images have their channels last,
   or in blocks of a vector each if no vector of the kernel begins inside of a block. */
enum { BYOC_GROUPS_PIXELS = 8 /* at once */ };

static inline int byoc_groups_is_depthwise(const byoc_convolution* p) {
  return p->channels == 1 && p->outputs == 1;
}

/* Groups whose channels find room in one vector, and whose outputs do in another: they are computed
   at once. A larger group has vectors of its own. */
static inline int64_t byoc_groups_together(const byoc_convolution* p) {
  return byoc_max(byoc_lanes(p->isa) / byoc_max(p->channels, p->outputs), 1);
}

/* Vectors of outputs of groups that are computed at once, and of all groups; and blocks of pixels
   in a row of results. */
static inline int64_t byoc_groups_parts(const byoc_convolution* p) {
  const int64_t lanes = byoc_lanes(p->isa);
  return (byoc_groups_together(p) * p->outputs + lanes - 1) / lanes;
}
static inline int64_t byoc_groups_vectors(const byoc_convolution* p) {
  const int64_t together = byoc_groups_together(p);
  return (p->groups + together - 1) / together * byoc_groups_parts(p);
}
static inline int64_t byoc_groups_blocks(const byoc_convolution* p) {
  return (p->out_width + BYOC_GROUPS_PIXELS - 1) / BYOC_GROUPS_PIXELS;
}

static inline size_t byoc_groups_packed_bytes(const byoc_convolution* p) {
  return (size_t)(byoc_groups_vectors(p) * byoc_lanes(p->isa) * byoc_taps(p)) * 4;
}

/* The taps of a row of the kernel that read a pixel of the source once for all results; none where
   each of them reads it anew. */
static inline int64_t byoc_groups_wide(const byoc_convolution* p) {
  const int is_depthwise = byoc_groups_is_depthwise(p);
  const int has_code =
      is_depthwise ? p->kernel_width == 5 || p->kernel_width == 7 : p->kernel_width > 2;
  if (!has_code || p->dilation_x != 1 || p->stride_x > 2) return 0;
  return is_depthwise ? p->kernel_width : 3;
}

#define BYOC_BODY "byoc_groups.h"
#include "byoc_each_isa.h"

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_KERNEL_FOR_ISA(groups, byoc_convolution, p->isa, p->threads)

BYOC_FUNCTION void byoc_groups_pack_part(const byoc_convolution* p, void* const* data, int64_t part,
                                         int64_t parts) {
  const int64_t lanes = byoc_lanes(p->isa), taps = byoc_taps(p);
  const int64_t all = p->groups * p->outputs;
  const int64_t vectors = byoc_groups_vectors(p), of_group = byoc_groups_parts(p);
  const int64_t at_once = byoc_groups_together(p) * p->outputs;
  for (int64_t v = vectors * part / parts; v < vectors * (part + 1) / parts; ++v) {
    const int64_t begin = v / of_group * at_once, first = begin + v % of_group * lanes;
    const int64_t end = byoc_min(begin + at_once, all);
    float* to = (float*)data[1] + v * lanes * taps;
    int64_t at[BYOC_AVX512_LANES]; /* the first weight of each output */
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t o = first + i;
      at[i] = o / p->outputs * p->weights.group + o % p->outputs * p->weights.output;
    }
    for (int64_t row = 0; row < p->kernel_height; ++row) {
      for (int64_t channel = 0; channel < p->channels; ++channel) {
        for (int64_t tap = 0; tap < p->kernel_width; ++tap) {
          const float* from = (const float*)data[0] + channel * p->weights.channel +
                              (row * p->kernel_width + tap) * p->weights.tap;
          for (int64_t i = 0; i < lanes; ++i) *to++ = first + i < end ? from[at[i]] : 0.f;
        }
      }
    }
  }
}

/* params: byoc_convolution. data: the weights, and where they are packed. Lanes without an output
   are zeros. */
BYOC_KERNEL(groups_pack, byoc_convolution, threads)

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

typedef int BYOC_NAME(lane_numbers) __attribute__((vector_size(BYOC_LANES * 4)));

/* The source of a block: pixels `first` to before `width` of its rows are there. */
typedef struct BYOC_NAME(groups_source) {
  int64_t pixel, row, rows, first, width;
} BYOC_NAME(groups_source);

/* A block of pixels of a row of results, and what it reads. */
typedef struct BYOC_NAME(groups_block) {
  const byoc_convolution* p;
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
BYOC_INLINE BYOC_NAME(lane_numbers) BYOC_NAME(groups_spread)(const byoc_convolution* p) {
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
  const byoc_position at = {b->image, b->y, b->x, output};
  BYOC_NAME(post_operations)((const byoc_post_op*)(b->p + 1), b->p->post_ops, b->data, at, lanes, 1,
                             BYOC_GROUPS_PIXELS, 1, b->pixels, o);
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
  const byoc_convolution* p = b->p;
  /* Copies, which no store of a result can change. */
  const byoc_end end = *b->end;
  const int64_t together = spread ? byoc_groups_together(p) : BYOC_LANES;
  const int64_t parts = spread ? byoc_groups_parts(p) : 1;
  const int64_t channels = spread ? p->channels : 1, outputs = spread ? p->outputs : 1;
  const int64_t of_channel = (wide > 0 && !rest ? wide : p->kernel_width) * BYOC_LANES;
  const int64_t of_vector = byoc_taps(p) * BYOC_LANES;
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
  const byoc_convolution* p = b->p;
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

/* The vectors of outputs of one thread: blocks of pixels, counted over all images, rows and blocks.
 */
BYOC_NO_INLINE void BYOC_NAME(groups_part)(const byoc_convolution* p, void* const* data,
                                           void* scratch, int64_t part, int64_t parts) {
  const byoc_post_op* post_ops = (const byoc_post_op*)(p + 1);
  const int64_t vectors = byoc_groups_vectors(p), blocks = byoc_groups_blocks(p);
  const int64_t items = p->images * p->out_height * blocks * vectors;
  const int64_t last = items * (part + 1) / parts;
  const float* src = (const float*)data[0];
  float* result = byoc_convolved(p, post_ops, data).to;
  byoc_end end = byoc_end_of(post_ops, p->post_ops);
  end.fits = end.fits && end.added == NULL;
  (void)scratch;
  for (int64_t item = items * part / parts, after; item < last; item = after) {
    const int64_t block = item / vectors, row = block / blocks;
    const int64_t image = row / p->out_height, y = row % p->out_height;
    const int64_t x = block % blocks * BYOC_GROUPS_PIXELS;
    const int64_t top = y * p->stride_y - p->pad_top, left = x * p->stride_x - p->pad_left;
    const byoc_inside rows = byoc_taps_inside(top, p->height, p->dilation_y, p->kernel_height);
    const BYOC_NAME(groups_block)
        b = {p,
             &end,
             data,
             image,
             y,
             x,
             (int)byoc_min(p->out_width - x, BYOC_GROUPS_PIXELS),
             {p->src.pixel, p->dilation_y * p->src.row, rows.last - rows.first, left, p->width},
             src + image * p->src.image + (top + rows.first * p->dilation_y) * p->src.row +
                 left * p->src.pixel,
             (const float*)data[1] + rows.first * p->kernel_width * p->channels * BYOC_LANES,
             result + image * p->dst.image + y * p->dst.row + x * p->dst.pixel};
    after = byoc_min((block + 1) * vectors, last);
    BYOC_NAME(groups_run)(&b, item - block * vectors, after - block * vectors);
  }
}

#endif /* BYOC_GROUPS_H_ */
