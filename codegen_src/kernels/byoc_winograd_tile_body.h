/* SPDX-License-Identifier: Apache-2.0
   A tile of Winograd's convolution: from its pixels towards its points, and from its points to the
   results. Compiled once per instruction set, behind byoc_vector.h; a guard for each, since the
   bodies of two kernels include it. */
#if (defined(BYOC_SIMD_AVX512) && !defined(BYOC_HAVE_WINOGRAD_AVX512)) || \
    (defined(BYOC_SIMD_AVX2) && !defined(BYOC_HAVE_WINOGRAD_AVX2))
#ifdef BYOC_SIMD_AVX512
#define BYOC_HAVE_WINOGRAD_AVX512
#else
#define BYOC_HAVE_WINOGRAD_AVX2
#endif

#include "byoc_winograd_plan.h"

/* B', applied to n values `s` apart. */
BYOC_INLINE void BYOC_NAME(winograd_input)(int n, const BYOC_VEC* d, int s, BYOC_VEC* o, int t) {
  if (n == 6) {
    const BYOC_VEC d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s], d5 = d[5 * s];
    const BYOC_VEC a = d4 - d2, b = d3 - d1;
    o[0] = d0 + d4 + 1.5f * b - 2.f * d2;
    o[t] = a + d1 - 1.5f * d2 + .5f * d3;
    o[2 * t] = a - d1 + 1.5f * d2 + 2.5f * d3;
    o[3 * t] = a + 2.f * b;
    o[4 * t] = a - .5f * b;
    o[5 * t] = d1 + d5 + 1.5f * a - 2.f * d3;
  } else {
    const BYOC_VEC d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s];
    o[0] = d2 - d0;
    o[t] = d1 + d2;
    o[2 * t] = d2 - d1;
    o[3 * t] = d3 - d1;
  }
}

/* A', of m rows for n points. */
BYOC_INLINE void BYOC_NAME(winograd_output)(int m, int n, const BYOC_VEC* v, int s, BYOC_VEC* o,
                                            int t) {
  if (n == 6) {
    const BYOC_VEC v3 = v[3 * s], v4 = v[4 * s];
    const BYOC_VEC sum = v[s] + v[2 * s], difference = v[2 * s] - v[s];
    o[0] = v[0] + sum + v3 + v4;
    o[t] = difference + .5f * v3 - 2.f * v4;
    if (m == 2) {
      o[t] += v[5 * s];
    } else {
      o[2 * t] = sum + .25f * v3 + 4.f * v4;
      o[3 * t] = difference + .125f * v3 - 8.f * v4 + v[5 * s];
    }
  } else {
    const BYOC_VEC v1 = v[s], v2 = v[2 * s];
    o[0] = v[0] + v1 + v2;
    o[t] = v1 - v2 + v[3 * s];
  }
}

/* The place of a tile: its image, and its first row and column of results. */
typedef struct BYOC_NAME(winograd_tile) {
  int64_t image, y, x;
} BYOC_NAME(winograd_tile);

BYOC_INLINE BYOC_NAME(winograd_tile)
    BYOC_NAME(winograd_locate)(const byoc_winograd_params* w, int64_t tile) {
  const int64_t across = (w->of.out_width + w->m - 1) / w->m,
                down = (w->of.out_height + w->m - 1) / w->m;
  BYOC_NAME(winograd_tile) t;
  t.image = tile / (across * down);
  t.y = tile / across % down * w->m;
  t.x = tile % across * w->m;
  return t;
}

/* Goes to the next tile; a division takes longer than a tile's transformation. */
BYOC_INLINE void BYOC_NAME(winograd_next)(const byoc_winograd_params* w,
                                          BYOC_NAME(winograd_tile) * t) {
  t->x += w->m;
  if (t->x < w->of.out_width) return;
  t->x = 0;
  t->y += w->m;
  if (t->y < w->of.out_height) return;
  t->y = 0;
  ++t->image;
}

/* Where a vector of terms is read: its first channel, and the pixel that it reads first of a tile
   at the origin. */
typedef struct BYOC_NAME(winograd_source) {
  const float* from;
  int lanes;
  int64_t top, left;
} BYOC_NAME(winograd_source);

BYOC_INLINE BYOC_NAME(winograd_source)
    BYOC_NAME(winograd_find)(const byoc_winograd_params* w, int64_t group, int64_t term,
                             void* const* data) {
  const int64_t phase = w->of.stride_x == 1 ? 0 : term / w->of.channels;
  const int64_t channel = term - phase * w->of.channels;
  BYOC_NAME(winograd_source) s;
  s.from =
      (const float*)data[0] + byoc_channel_offset(&w->of.src, group * w->of.channels + channel);
  s.lanes = (int)byoc_min(BYOC_LANES, w->of.channels - channel);
  s.top = phase / w->of.stride_x - w->of.pad_top;
  s.left = phase % w->of.stride_x - w->of.pad_left;
  return s;
}

/* One tile and one vector of terms -> its points in V, `step` apart. */
BYOC_INLINE void BYOC_NAME(winograd_take_n)(const byoc_winograd_params* w, int n,
                                            const BYOC_NAME(winograd_source) * s,
                                            BYOC_NAME(winograd_tile) t, float* v, int64_t step) {
  const int64_t stride = w->of.stride_x, row = stride * w->of.src.row,
                pixel = stride * w->of.src.pixel;
  const int64_t top = t.y * stride + s->top, left = t.x * stride + s->left;
  const int64_t reach = (n - 1) * stride;
  /* Pixels outside of the image are never read, nor is their address made. */
  const float* from = s->from + t.image * w->of.src.image;
  BYOC_VEC d[6], half[36];
  if (s->lanes == BYOC_LANES && top >= 0 && left >= 0 && top + reach < w->of.height &&
      left + reach < w->of.width) {
    const float* at = from + top * w->of.src.row + left * w->of.src.pixel;
    BYOC_UNROLL
    for (int j = 0; j < n; ++j) {
      BYOC_UNROLL
      for (int i = 0; i < n; ++i) d[i] = BYOC_NAME(load)(at + i * row + j * pixel);
      BYOC_NAME(winograd_input)(n, d, 1, half + j, n);
    }
  } else {
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < n; ++i) {
        const int64_t y = top + i * stride, x = left + j * stride;
        const int inside = y >= 0 && y < w->of.height && x >= 0 && x < w->of.width;
        d[i] = inside
                   ? BYOC_NAME(load_some)(from + y * w->of.src.row + x * w->of.src.pixel, s->lanes)
                   : BYOC_NAME(set)(0);
      }
      BYOC_NAME(winograd_input)(n, d, 1, half + j, n);
    }
  }
  BYOC_UNROLL
  for (int i = 0; i < n; ++i) {
    BYOC_VEC o[6];
    BYOC_NAME(winograd_input)(n, half + i * n, 1, o, 1);
    for (int j = 0; j < n; ++j) BYOC_NAME(store)(v + (i * n + j) * step, o[j]);
  }
}

BYOC_NO_INLINE void BYOC_NAME(winograd_take)(const byoc_winograd_params* w,
                                             const BYOC_NAME(winograd_source) * source,
                                             BYOC_NAME(winograd_tile) tile, float* v,
                                             int64_t step) {
  /* The size of a tile is known to the compiler in each of the two. */
  if (byoc_winograd_side(w) == 6) {
    BYOC_NAME(winograd_take_n)(w, 6, source, tile, v, step);
  } else {
    BYOC_NAME(winograd_take_n)(w, 4, source, tile, v, step);
  }
}

/* V of `count` tiles of a group from `t` on, whose rows lie `row` apart. */
BYOC_INLINE void BYOC_NAME(winograd_take_tiles)(const byoc_winograd_params* w, int64_t group,
                                                BYOC_NAME(winograd_tile) t, int64_t count,
                                                void* const* data, float* v, int64_t row,
                                                int64_t step) {
  const BYOC_NAME(winograd_tile) corner = t;
  for (int64_t term = 0; term < byoc_winograd_terms(w); term += BYOC_LANES, t = corner) {
    const BYOC_NAME(winograd_source) source = BYOC_NAME(winograd_find)(w, group, term, data);
    for (int64_t i = 0; i < count; ++i, BYOC_NAME(winograd_next)(w, &t)) {
      BYOC_NAME(winograd_take)(w, &source, t, v + i * row + term, step);
    }
  }
}

/* A vector of outputs: the first of them among those of all groups, its place, and what is done
   with the results in registers. */
typedef struct BYOC_NAME(winograd_result) {
  int64_t output, place;
  int lanes;
  byoc_end end;
} BYOC_NAME(winograd_result);

BYOC_INLINE BYOC_NAME(winograd_result)
    BYOC_NAME(winograd_place)(const byoc_winograd_params* w, int64_t group, int64_t output) {
  BYOC_NAME(winograd_result) r;
  r.output = group * w->of.outputs + output;
  r.place = byoc_channel_offset(&w->of.dst, r.output);
  r.lanes = (int)byoc_min(BYOC_LANES, w->of.outputs - output);
  r.end = byoc_end_of((const byoc_post_op*)(w + 1), w->of.post_ops);
  return r;
}

/* The end of a tile whose post-operations are done in registers, line by line. `half`: its points
   after the transformation of the columns. */
BYOC_INLINE void BYOC_NAME(winograd_store)(const byoc_winograd_params* w, int m, int n,
                                           const BYOC_VEC* half, BYOC_NAME(winograd_tile) t,
                                           const BYOC_NAME(winograd_result) * r,
                                           void* const* data) {
  const byoc_end* end = &r->end;
  const int rows = (int)byoc_min(m, w->of.out_height - t.y),
            columns = (int)byoc_min(m, w->of.out_width - t.x);
  const BYOC_VEC bias =
      w->of.has_bias ? BYOC_NAME(load)((const float*)data[2] + r->output) : BYOC_NAME(set)(0);
  const byoc_strides* of = &w->of.dst;
  const float* added = NULL;
  if (end->added != NULL) {
    of = &end->added->strides;
    added = (const float*)data[end->added->operand] + byoc_channel_offset(of, r->output) +
            t.image * of->image + t.y * of->row + t.x * of->pixel;
  }
  float* to = (float*)data[2 + w->of.has_bias + (added != NULL)] + r->place +
              t.image * w->of.dst.image + t.y * w->of.dst.row + t.x * w->of.dst.pixel;
  BYOC_UNROLL
  for (int i = 0; i < m; ++i) {
    if (i == rows) break;
    BYOC_VEC o[1][4];
    BYOC_NAME(winograd_output)(m, n, half + i * n, 1, o[0], 1);
    BYOC_UNROLL
    for (int j = 0; j < m; ++j) {
      o[0][j] += bias;
      if (added != NULL && j < columns)
        o[0][j] += BYOC_NAME(load)(added + i * of->row + j * of->pixel);
    }
    BYOC_NAME(end_sums)(1, m, end, o);
    BYOC_UNROLL
    for (int j = 0; j < m; ++j) {
      if (j == columns) break;
      BYOC_NAME(store)(to + i * w->of.dst.row + j * w->of.dst.pixel, o[0][j]);
    }
  }
}

/* One tile and one vector of outputs: from its points in M to the results. */
BYOC_INLINE void BYOC_NAME(winograd_give_m)(const byoc_winograd_params* w, int m, int n,
                                            const float* products, int64_t step,
                                            BYOC_NAME(winograd_tile) t,
                                            const BYOC_NAME(winograd_result) * r,
                                            void* const* data) {
  const int rows = (int)byoc_min(m, w->of.out_height - t.y),
            columns = (int)byoc_min(m, w->of.out_width - t.x);
  BYOC_VEC v[6], half[24], o[16];
  BYOC_UNROLL
  for (int j = 0; j < n; ++j) {
    BYOC_UNROLL
    for (int i = 0; i < n; ++i) v[i] = BYOC_NAME(load)(products + (i * n + j) * step);
    BYOC_NAME(winograd_output)(m, n, v, 1, half + j, n);
  }
  if (r->end.fits && r->lanes == BYOC_LANES) {
    BYOC_NAME(winograd_store)(w, m, n, half, t, r, data);
    return;
  }
  BYOC_UNROLL
  for (int i = 0; i < m; ++i) BYOC_NAME(winograd_output)(m, n, half + i * n, 1, o + i * m, 1);
  const byoc_position at = {t.image, t.y, t.x, r->output};
  byoc_results results = byoc_convolved(&w->of, (const byoc_post_op*)(w + 1), data);
  if (w->of.has_bias) results.bias = (const float*)data[2];
  BYOC_NAME(finish_vectors)(&results, at, r->lanes, m, m, rows, columns, o);
}

BYOC_NO_INLINE void BYOC_NAME(winograd_give)(const byoc_winograd_params* w, const float* products,
                                             int64_t step, BYOC_NAME(winograd_tile) tile,
                                             const BYOC_NAME(winograd_result) * result,
                                             void* const* data) {
  if (w->m == 4) {
    BYOC_NAME(winograd_give_m)(w, 4, 6, products, step, tile, result, data);
  } else if (byoc_winograd_side(w) == 6) {
    BYOC_NAME(winograd_give_m)(w, 2, 6, products, step, tile, result, data);
  } else {
    BYOC_NAME(winograd_give_m)(w, 2, 4, products, step, tile, result, data);
  }
}

#endif
