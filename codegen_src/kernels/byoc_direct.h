/* SPDX-License-Identifier: Apache-2.0
   Direct convolution in two dimensions, float32, for groups.

   A product of few channels is too thin for a product of matrices: to unfold the source takes
   longer than to multiply it. Here a few pixels of a row of results are computed at once for one
   panel of outputs. Each weight is loaded once for all of them, and the pixels of the source are
   read where they are, in any layout, by a table of the distances between the taps. So a shuffle of
   the channels before costs nothing.

   Written for AVX2 alone: where there is AVX-512, oneDNN has good primitives for these shapes. */
#ifndef BYOC_DIRECT_H_
#define BYOC_DIRECT_H_

#include "byoc_post_ops.h"

/* The parameters of the kernel; the post-operations follow them. */
typedef struct __attribute__((may_alias)) byoc_direct_params {
  byoc_convolution of;
  int64_t shuffle; /* channels of the source are read as oneDNN's shuffle of this group size would
                      order them; 1: as they are */
} byoc_direct_params;

enum { BYOC_DIRECT_LANES = BYOC_AVX2_LANES };

/* Vectors of the panel of weights that begins at an output of a group: 3, or 2 where that leaves no
   single vector for the last panel. */
static inline int64_t byoc_direct_vectors(const byoc_convolution* p, int64_t output) {
  const int64_t left = (p->outputs - output + BYOC_DIRECT_LANES - 1) / BYOC_DIRECT_LANES;
  return left == 3 || left > 4 ? 3 : 2;
}

/* Outputs of a group, filled up to whole panels. */
static inline int64_t byoc_direct_filled(const byoc_convolution* p) {
  return byoc_max(byoc_round_up(p->outputs, BYOC_DIRECT_LANES), 2 * BYOC_DIRECT_LANES);
}

static inline size_t byoc_direct_packed_bytes(const byoc_direct_params* p) {
  return (size_t)(p->of.groups * byoc_taps(&p->of) * byoc_direct_filled(&p->of)) * 4;
}

/* What a thread keeps: where each tap of each group lies, and the biases, filled up with zeros. */
static inline int64_t byoc_direct_scratch_of_thread(const byoc_convolution* p) {
  return p->groups * (byoc_taps(p) * 8 + byoc_direct_filled(p) * 4);
}
static inline size_t byoc_direct_scratch_bytes(const byoc_direct_params* p) {
  return (size_t)(p->of.threads * byoc_direct_scratch_of_thread(&p->of));
}

/* clang-format off */
#define BYOC_SIMD_AVX2
#include "byoc_vector.h"
#include "byoc_direct.h"
#include "byoc_vector.h"
#undef BYOC_SIMD_AVX2
/* clang-format on */

/* The kernel. data: source, packed weights, bias if there is one, the operands of the
   post-operations, result. */
BYOC_KERNEL_BY(direct, byoc_direct_params, p->of.threads,
               byoc_direct_part_avx2(p, data, scratch, part, parts))

BYOC_FUNCTION void byoc_direct_pack_part(const byoc_convolution* p, void* const* data, int64_t part,
                                         int64_t parts) {
  const int64_t filled = byoc_direct_filled(p), taps = byoc_taps(p);
  const int64_t area = p->kernel_height * p->kernel_width;
  const byoc_weight_strides* s = &p->weights;
  for (int64_t group = p->groups * part / parts; group < p->groups * (part + 1) / parts; ++group) {
    const float* of_group = (const float*)data[0] + group * s->group;
    float* to = (float*)data[1] + group * filled * taps;
    for (int64_t first = 0, panel = 0; first < filled; first += panel) {
      panel = byoc_direct_vectors(p, first) * BYOC_DIRECT_LANES;
      for (int64_t place = 0; place < area; ++place) {
        for (int64_t channel = 0; channel < p->channels; ++channel) {
          const float* from = of_group + channel * s->channel + place * s->tap;
          for (int64_t o = first; o < first + panel; ++o) {
            *to++ = o < p->outputs ? from[o * s->output] : 0.f;
          }
        }
      }
    }
  }
}

/* params: as of byoc_direct. data: the weights, and what is made of them: group, panel of outputs,
   height, width, channel, output; the last panel of a group is filled up with zeros. */
BYOC_KERNEL_BY(direct_pack, byoc_direct_params, threads,
               byoc_direct_pack_part(&p->of, data, part, parts))

#elif defined(BYOC_VEC) /* for its instruction set, from above */

enum { BYOC_DIRECT_MOST = 6 /* pixels at once, beside two vectors of weights; 4 beside three */ };

/* The taps of a pixel that lie inside of the source: `runs` runs of `length` taps, whose first ones
   are `apart` taps apart. */
typedef struct byoc_direct_inside {
  int64_t first, runs, length, apart;
} byoc_direct_inside;

/* Where results lie, and numbers that are added to them if there are any; and the outputs that are
   left from the first of the panel on. */
typedef struct byoc_direct_target {
  float* to;
  int64_t pixel, vector, outputs;
  const float* added;
  int64_t added_pixel, added_vector;
} byoc_direct_target;

/* Outputs in a vector of the panel. */
BYOC_INLINE int BYOC_NAME(direct_lanes)(const byoc_direct_target* t, int vector) {
  return (int)byoc_max(0, byoc_min(t->outputs - vector * BYOC_LANES, BYOC_LANES));
}

/* One panel of outputs for `blocks` blocks of a few pixels, whose sources lie `step` apart. */
BYOC_INLINE void BYOC_NAME(direct_blocks)(const int pixels, const int vectors, int64_t blocks,
                                          const float* from, int64_t step, const int64_t* tap_at,
                                          const float* weights, byoc_direct_inside taps,
                                          const float* start, const byoc_end* end,
                                          byoc_direct_target t) {
  const int last = vectors - 1;
  for (; blocks > 0; --blocks, from += pixels * step, t.to += pixels * t.pixel) {
    BYOC_VEC sums[BYOC_DIRECT_MOST][4];
    /* The lines of the result arrive during the sums, so that no store waits for one; so do those
       of the numbers that are added. */
    BYOC_UNROLL
    for (int i = 0; i < pixels; ++i) {
      __builtin_prefetch(t.to + i * t.pixel, 1, 3);
      __builtin_prefetch(t.to + i * t.pixel + last * t.vector + BYOC_LANES - 1, 1, 3);
      if (t.added == NULL) continue;
      __builtin_prefetch(t.added + i * t.added_pixel, 0, 3);
      __builtin_prefetch(t.added + i * t.added_pixel + last * t.added_vector + BYOC_LANES - 1, 0,
                         3);
    }
    BYOC_NAME(begin_sums)(pixels, vectors, start, 0, sums);
    for (int64_t run = 0; run < taps.runs; ++run) {
      const int64_t first = taps.first + run * taps.apart;
      const float* of_tap = weights + first * vectors * BYOC_LANES;
      for (int64_t k = first; k < first + taps.length; ++k, of_tap += vectors * BYOC_LANES) {
        BYOC_NAME(add_step)(pixels, vectors, from + tap_at[k], step, of_tap, BYOC_PANEL, sums);
      }
    }
    if (t.added != NULL) {
      BYOC_UNROLL
      for (int j = 0; j < vectors; ++j) {
        const int lanes = BYOC_NAME(direct_lanes)(&t, j);
        const float* added = t.added + j * t.added_vector;
        BYOC_UNROLL
        for (int i = 0; i < pixels; ++i) {
          sums[i][j] += BYOC_NAME(load_some)(added + i * t.added_pixel, lanes);
        }
      }
      t.added += pixels * t.added_pixel;
    }
    BYOC_NAME(end_sums)(pixels, vectors, end, sums);
    BYOC_UNROLL
    for (int j = 0; j < vectors; ++j) {
      const int lanes = BYOC_NAME(direct_lanes)(&t, j);
      BYOC_UNROLL
      for (int i = 0; i < pixels; ++i) {
        BYOC_NAME(store_some)(t.to + i * t.pixel + j * t.vector, sums[i][j], lanes);
      }
    }
  }
}

BYOC_NO_INLINE void BYOC_NAME(direct_pixels)(int pixels, int vectors, int64_t blocks,
                                             const float* from, int64_t step, const int64_t* tap_at,
                                             const float* weights, byoc_direct_inside taps,
                                             const float* start, const byoc_end* end,
                                             byoc_direct_target t) {
#define BYOC_CASE(m, n)                                                                       \
  case 16 * n + m:                                                                            \
    BYOC_NAME(direct_blocks)(m, n, blocks, from, step, tap_at, weights, taps, start, end, t); \
    break;
  switch (16 * vectors + pixels) {
    BYOC_1_TO_6(BYOC_CASE, 2)
    BYOC_CASE(1, 3)
    BYOC_CASE(2, 3)
    BYOC_CASE(3, 3)
    BYOC_CASE(4, 3)
    default:
      break;
  }
#undef BYOC_CASE
}

/* What is the same for all pixels of a call. */
typedef struct byoc_direct_call {
  const byoc_convolution* p;
  void* const* data;
  byoc_results results;
  int64_t left, right; /* pixels from `left` to before `right` have no tap beside the image */
  byoc_end end;        /* where it does not fit, all post-operations are done behind the sums */
} byoc_direct_call;

static inline byoc_direct_call byoc_direct_call_of(const byoc_convolution* p,
                                                   const byoc_post_op* post_ops,
                                                   void* const* data) {
  const int64_t reach = (p->kernel_width - 1) * p->dilation_x;
  const int64_t room = p->width - 1 - reach + p->pad_left;
  byoc_direct_call c;
  c.p = p;
  c.data = data;
  c.results = byoc_convolved(p, post_ops, data);
  c.left = byoc_min((p->pad_left + p->stride_x - 1) / p->stride_x, p->out_width);
  c.right = room < 0 ? 0 : byoc_min(room / p->stride_x + 1, p->out_width);
  c.right = byoc_max(c.right, c.left);
  c.end = byoc_end_of(post_ops, p->post_ops);
  return c;
}

/* Floats from one vector of channels to the next. */
BYOC_INLINE int64_t BYOC_NAME(direct_vector)(const byoc_strides* s) {
  return s->lanes == BYOC_LANES ? s->block : BYOC_LANES;
}

/* A row of results of one panel of outputs, whose first channel of all groups is `channel`. */
BYOC_INLINE void BYOC_NAME(direct_panel)(const byoc_direct_call* c, int64_t image, int64_t y,
                                         int64_t channel, int64_t outputs, int64_t vectors,
                                         const int64_t* tap_at, const float* weights,
                                         const float* start) {
  const byoc_convolution* p = c->p;
  const int64_t top = y * p->stride_y - p->pad_top;
  const int64_t of_row = p->kernel_width * p->channels;
  const byoc_inside rows = byoc_taps_inside(top, p->height, p->dilation_y, p->kernel_height);
  const int64_t down = rows.last - rows.first;
  const float* src = (const float*)c->data[0] + image * p->src.image + top * p->src.row;
  float* dst =
      c->results.to + image * p->dst.image + y * p->dst.row + byoc_channel_offset(&p->dst, channel);
  const int64_t at_once = vectors == 2 ? BYOC_DIRECT_MOST : 4;
  const byoc_passes passes = byoc_in_passes(c->right - c->left, at_once);
  float sums[BYOC_DIRECT_MOST * 3 * BYOC_LANES];
  for (int64_t x = 0, pass = 0; x < p->out_width;) {
    const int64_t from = x * p->stride_x - p->pad_left;
    byoc_direct_inside taps = {rows.first * of_row, 1, down * of_row, 0};
    int64_t pixels = 1, blocks = 1;
    if (x >= c->left && x < c->right) {
      pixels = byoc_pass_rows(&passes, pass);
      if (c->end.fits) blocks = pass < passes.longer ? passes.longer : passes.count - pass;
      pass += blocks;
    } else { /* taps left or right of the image */
      const byoc_inside columns = byoc_taps_inside(from, p->width, p->dilation_x, p->kernel_width);
      taps.first += columns.first * p->channels;
      taps.runs = down;
      taps.length = (columns.last - columns.first) * p->channels;
      taps.apart = of_row;
    }
    byoc_direct_target t = {dst + x * p->dst.pixel,
                            p->dst.pixel,
                            BYOC_NAME(direct_vector)(&p->dst),
                            outputs,
                            NULL,
                            0,
                            0};
    byoc_direct_target own = {sums, vectors * BYOC_LANES, BYOC_LANES, vectors * BYOC_LANES, NULL, 0,
                              0};
    if (c->end.added != NULL) {
      const byoc_strides* s = &c->end.added->strides;
      t.added = (const float*)c->data[c->end.added->operand] + image * s->image + y * s->row +
                x * s->pixel + byoc_channel_offset(s, channel);
      t.added_pixel = s->pixel;
      t.added_vector = BYOC_NAME(direct_vector)(s);
    }
    BYOC_NAME(direct_pixels)((int)pixels, (int)vectors, blocks, src + from * p->src.pixel,
                             p->stride_x * p->src.pixel, tap_at, weights, taps, start, &c->end,
                             c->end.fits ? t : own);
    if (!c->end.fits) {
      const byoc_position at = {image, y, x, channel};
      BYOC_NAME(finish_sums)(&c->results, sums, vectors * BYOC_LANES, pixels, at,
                             channel + byoc_min(outputs, vectors * BYOC_LANES));
    }
    x += pixels * blocks;
  }
}

/* The rows of results of one thread, counted over all images, rows and groups. */
BYOC_NO_INLINE void BYOC_NAME(direct_part)(const byoc_direct_params* d, void* const* data,
                                           void* scratch, int64_t part, int64_t parts) {
  const byoc_convolution* p = &d->of;
  const byoc_direct_call c = byoc_direct_call_of(p, (const byoc_post_op*)(d + 1), data);
  const float* packed = (const float*)data[1];
  const int64_t taps = byoc_taps(p), filled = byoc_direct_filled(p);
  int64_t* tap_at = (int64_t*)((char*)scratch + part * byoc_direct_scratch_of_thread(p));
  float* start = (float*)(tap_at + p->groups * taps);
  const int64_t all = p->groups * p->channels;
  int64_t of_source = 0; /* channel */
  for (int64_t group = 0; group < p->groups; ++group) {
    for (int64_t channel = 0; channel < p->channels; ++channel) {
      const int64_t at = byoc_channel_offset(&p->src, of_source);
      int64_t* of_channel = tap_at + group * taps + channel;
      for (int64_t i = 0; i < p->kernel_height; ++i) {
        for (int64_t j = 0; j < p->kernel_width; ++j, of_channel += p->channels) {
          *of_channel = at + i * p->dilation_y * p->src.row + j * p->dilation_x * p->src.pixel;
        }
      }
      of_source += d->shuffle;
      if (of_source >= all) of_source -= all - 1; /* the next column of the shuffle */
    }
    memset(start + group * filled, 0, (size_t)filled * 4);
    if (p->has_bias) {
      memcpy(start + group * filled, (const float*)data[2] + group * p->outputs,
             (size_t)p->outputs * 4);
    }
  }
  const int64_t items = p->images * p->out_height * p->groups;
  for (int64_t item = items * part / parts; item < items * (part + 1) / parts; ++item) {
    const int64_t group = item % p->groups, row = item / p->groups;
    const int64_t image = row / p->out_height, y = row % p->out_height;
    for (int64_t o = 0, vectors = 0; o < p->outputs; o += vectors * BYOC_LANES) {
      vectors = byoc_direct_vectors(p, o);
      BYOC_NAME(direct_panel)(&c, image, y, group * p->outputs + o, p->outputs - o, vectors,
                              tap_at + group * taps, packed + (group * filled + o) * taps,
                              start + group * filled + o);
    }
  }
}

#endif /* BYOC_DIRECT_H_ */
