/* SPDX-License-Identifier: Apache-2.0
   How a product is computed: a tile of it, whose sums stay in registers; what becomes of these
   there, or of sums in memory, before they are stored; and products of any size made of tiles.
   Included by byoc_vector.h, once per instruction set; no include guard. */

/* What rows x vectors of sums begin with: numbers from memory, or zeros for NULL. */
BYOC_INLINE void BYOC_NAME(begin_sums)(const int rows, const int vectors, const float* start,
                                       int64_t start_row, BYOC_VEC (*sums)[4]) {
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    BYOC_UNROLL
    for (int j = 0; j < vectors; ++j) {
      sums[i][j] = start == NULL ? BYOC_NAME(set)(0.f)
                                 : BYOC_NAME(load)(start + i * start_row + j * BYOC_LANES);
    }
  }
}

/* Adds one step of the depth: a number of each row, `a_row` apart, times the vectors of weights at
   `b`, two in each panel. */
BYOC_INLINE void BYOC_NAME(add_step)(const int rows, const int vectors, const float* a,
                                     int64_t a_row, const float* b, int64_t b_panel,
                                     BYOC_VEC (*sums)[4]) {
  BYOC_VEC w[4];
  BYOC_UNROLL
  for (int j = 0; j < vectors; ++j) {
    w[j] = BYOC_NAME(load)(b + (j / 2) * b_panel + (j % 2) * BYOC_LANES);
  }
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    const float x = a[i * a_row];
    BYOC_UNROLL
    for (int j = 0; j < vectors; ++j) sums[i][j] += x * w[j];
  }
}

/* The same for panels of weights that come from memory where the rows are few. */
BYOC_INLINE void BYOC_NAME(product_step)(const int rows, const int panels, const float* a,
                                         int64_t a_row, const float* b, int64_t b_panel,
                                         BYOC_VEC (*sums)[4]) {
  enum { kAhead = 512 };
  if (rows <= BYOC_FEW_ROWS) {
    BYOC_UNROLL
    for (int j = 0; j < BYOC_PANEL; j += BYOC_CACHE_LINE_FLOATS) {
      __builtin_prefetch(b + j + kAhead, 0, 2);
    }
  }
  BYOC_NAME(add_step)(rows, 2 * panels, a, a_row, b, b_panel, sums);
}

/* Limits, curve and scale of an end, on rows x vectors of sums. */
BYOC_INLINE void BYOC_NAME(end_sums)(const int rows, const int vectors, const byoc_end* end,
                                     BYOC_VEC (*sums)[4]) {
#define BYOC_EACH(result)               \
  BYOC_UNROLL                           \
  for (int i = 0; i < rows; ++i) {      \
    BYOC_UNROLL                         \
    for (int j = 0; j < vectors; ++j) { \
      const BYOC_VEC x = sums[i][j];    \
      sums[i][j] = (result);            \
    }                                   \
  }
  const BYOC_VEC zero = BYOC_NAME(set)(0.f);
  if (end->hardswish != NULL) {
    const float alpha = end->hardswish->alpha, beta = end->hardswish->beta;
    BYOC_EACH(x * BYOC_NAME(clip)(alpha * x + beta, zero, BYOC_NAME(set)(1.f)))
  } else if (end->low == 0 && end->high == __builtin_inff()) {
    BYOC_EACH(BYOC_NAME(max)(zero, x))
  } else if (end->low != -__builtin_inff() || end->high != __builtin_inff()) {
    BYOC_EACH(BYOC_NAME(clip)(x, BYOC_NAME(set)(end->low), BYOC_NAME(set)(end->high)))
  }
  if (end->scaled) {
    BYOC_EACH(end->scale * x + end->shift)
  }
#undef BYOC_EACH
}

/* `rows` rows and `panels` panels of a product. `fetches`: whether what lies from `next` on is
   fetched meanwhile, and how; many lines at once would keep the loads of the product waiting.
   `pace`: bytes that are fetched in each step, two lines at most, or steps for each line. */
BYOC_INLINE void BYOC_NAME(product_rows)(const int rows, const int panels, const int fetches,
                                         const byoc_matrices* m, const float* next, int64_t pace) {
  const int vectors = 2 * panels;
  const int64_t depth = m->depth, a_row = m->a_row, b_panel = m->b_panel;
  const float *a = m->a, *b = m->b;
  BYOC_VEC sums[BYOC_ROWS][4];
#ifndef BYOC_SIMD_AVX512 /* measured on AVX2 only */
  /* The lines of the result arrive during the products, so that no store waits for one. */
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    BYOC_UNROLL
    for (int j = 0; j < panels; ++j) {
      __builtin_prefetch(m->c + i * m->c_row + j * BYOC_PANEL, 1, 3);
    }
  }
  if (m->added != NULL && m->added != m->c) {
    BYOC_UNROLL
    for (int i = 0; i < rows; ++i) {
      BYOC_UNROLL
      for (int j = 0; j < panels; ++j) {
        __builtin_prefetch(m->added + i * m->added_row + j * BYOC_PANEL, 0, 3);
      }
    }
  }
#endif
  BYOC_NAME(begin_sums)(rows, vectors, m->start, m->start_row, sums);
  if (fetches == BYOC_FETCH_IN_EACH_STEP) {
    const char* at = (const char*)next; /* more than once in the same line */
    for (int64_t k = 0; k < depth; ++k, at += pace) {
      __builtin_prefetch(at, 0, 2);
#ifdef BYOC_SIMD_AVX512
      __builtin_prefetch(at + pace / 2, 0, 2);
#endif
      BYOC_NAME(product_step)(rows, panels, a + k, a_row, b + k * BYOC_PANEL, b_panel, sums);
    }
  } else if (fetches == BYOC_FETCH_BETWEEN_STEPS) {
    for (int64_t k = 0; k < depth; next += BYOC_CACHE_LINE_FLOATS) {
      __builtin_prefetch(next, 0, 2);
      for (const int64_t end = byoc_min(k + pace, depth); k < end; ++k) {
        BYOC_NAME(product_step)(rows, panels, a + k, a_row, b + k * BYOC_PANEL, b_panel, sums);
      }
    }
  } else {
    for (int64_t k = 0; k < depth; ++k) {
      BYOC_NAME(product_step)(rows, panels, a + k, a_row, b + k * BYOC_PANEL, b_panel, sums);
    }
  }
  if (m->added != NULL) {
    BYOC_UNROLL
    for (int i = 0; i < rows; ++i) {
      BYOC_UNROLL
      for (int j = 0; j < vectors; ++j) {
        sums[i][j] += BYOC_NAME(load)(m->added + i * m->added_row + j * BYOC_LANES);
      }
    }
  }
  if (m->end != NULL) BYOC_NAME(end_sums)(rows, vectors, m->end, sums);
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    BYOC_UNROLL
    for (int j = 0; j < vectors; ++j) {
      BYOC_NAME(store)(m->c + i * m->c_row + j * BYOC_LANES, sums[i][j]);
    }
  }
}

/* The same for one panel and at most BYOC_ROWS rows, or, with AVX-512, two and
   BYOC_PAIR_ROWS. */
BYOC_NO_INLINE void BYOC_NAME(product)(int rows, int panels, const byoc_matrices* m) {
#define BYOC_CASE(r, n)                           \
  case 16 * n + r:                                \
    BYOC_NAME(product_rows)(r, n, 0, m, NULL, 0); \
    break;
  switch (16 * panels + rows) {
    BYOC_1_TO_6(BYOC_CASE, 1)
#ifdef BYOC_SIMD_AVX512
    BYOC_7_TO_14(BYOC_CASE, 1)
    BYOC_1_TO_6(BYOC_CASE, 2)
#endif
    default:
      break;
  }
#undef BYOC_CASE
}

/* The same for one panel and the rows of one of several passes, which fetches meanwhile; the rows
   of a pass are at least half of the most. */
BYOC_INLINE void BYOC_NAME(product_of_pass)(int rows, const int fetches, const byoc_matrices* m,
                                            const float* next, int64_t pace) {
#define BYOC_CASE(r, n)                                    \
  case r:                                                  \
    BYOC_NAME(product_rows)(r, n, fetches, m, next, pace); \
    break;
  switch (rows) {
#ifdef BYOC_SIMD_AVX512
    BYOC_7_TO_14(BYOC_CASE, 1)
#else
    BYOC_1_TO_6(BYOC_CASE, 1)
#endif
    default:
      BYOC_NAME(product)(rows, 1, m);
  }
#undef BYOC_CASE
}

/* Two functions, since the loops of both do not find registers in one. */
BYOC_NO_INLINE void BYOC_NAME(product_fetching_in_each)(int rows, const byoc_matrices* m,
                                                        const float* next, int64_t bytes) {
  BYOC_NAME(product_of_pass)(rows, BYOC_FETCH_IN_EACH_STEP, m, next, bytes);
}
BYOC_NO_INLINE void BYOC_NAME(product_fetching_between)(int rows, const byoc_matrices* m,
                                                        const float* next, int64_t every) {
  BYOC_NAME(product_of_pass)(rows, BYOC_FETCH_BETWEEN_STEPS, m, next, every);
}

/* Cache lines of a panel that each of some passes fetches. Panels are fetched while the ones before
   them are multiplied: where they come from beyond the second-level cache, Intel's own fetching
   ahead ends at each small page. */
BYOC_INLINE int64_t BYOC_NAME(lines_of_pass)(int64_t depth, int64_t passes) {
  return (depth * BYOC_PANEL / BYOC_CACHE_LINE_FLOATS + passes - 1) / passes;
}

/* A product of any number of rows and panels. `after`: the first of the panels that are multiplied
   next, as far apart; NULL if nothing is to be fetched, as where all is in the
   second-level cache. */
BYOC_INLINE void BYOC_NAME(products)(int64_t rows, int64_t panels, const byoc_matrices* m,
                                     const float* after) {
  /* In few passes each weight is read a few times. AVX2 has nothing else to do meanwhile. */
  enum { kIsWide = BYOC_LANES == 16, kManyPasses = kIsWide ? 1 : 8 };
  const byoc_passes of[2] = {byoc_in_passes(rows, BYOC_ROWS), byoc_in_passes(rows, BYOC_PAIR_ROWS)};
  const int fetches = after != NULL && rows > BYOC_PAIR_ROWS && of[0].count >= kManyPasses;
  const int64_t wide = kIsWide && rows > BYOC_FEW_ROWS && !fetches ? 2 : 1;
  const int64_t lines = fetches ? BYOC_NAME(lines_of_pass)(m->depth, of[0].count) : 0;
  const int64_t every = fetches ? m->depth / byoc_max(lines, 1) : 0;
  const int64_t bytes =
      lines * BYOC_CACHE_LINE_FLOATS * (int64_t)sizeof(float) / byoc_max(m->depth, 1);
  for (int64_t panel = 0; panel < panels; panel += wide) {
    const int64_t count = byoc_min(wide, panels - panel), column = panel * BYOC_PANEL;
    const byoc_passes* passes = &of[count - 1];
    const float* next = panel + wide < panels ? m->b + (panel + wide) * m->b_panel : after;
    byoc_matrices part = *m;
    byoc_move(&part, 0, column);
    part.b += panel * m->b_panel;
    for (int64_t pass = 0; pass < passes->count; ++pass) {
      const int64_t present = byoc_pass_rows(passes, pass);
      const float* fetched = next + pass * lines * BYOC_CACHE_LINE_FLOATS;
      if (fetches && kIsWide) {
        BYOC_NAME(product_fetching_in_each)((int)present, &part, fetched, bytes);
      } else if (fetches) {
        BYOC_NAME(product_fetching_between)((int)present, &part, fetched, every);
      } else {
        BYOC_NAME(product)((int)present, (int)count, &part);
      }
      byoc_move(&part, present, 0);
    }
  }
}

BYOC_INLINE BYOC_VEC BYOC_NAME(unary)(const byoc_post_op* op, int64_t kind, BYOC_VEC x) {
  const BYOC_VEC alpha = BYOC_NAME(set)(op->alpha), beta = BYOC_NAME(set)(op->beta),
                 zero = BYOC_NAME(set)(0.f);
  switch (kind) {
    case BYOC_RELU:
      return op->alpha == 0 ? BYOC_NAME(max)(zero, x) : BYOC_NAME(if_negative)(x, alpha * x);
    case BYOC_CLIP:
      return BYOC_NAME(clip)(x, alpha, beta);
    case BYOC_LINEAR:
      return alpha * x + beta;
    case BYOC_ABS:
      return BYOC_NAME(if_negative)(x, -x);
    case BYOC_SQUARE:
      return x * x;
    case BYOC_HARDSIGMOID:
      return BYOC_NAME(clip)(alpha * x + beta, zero, BYOC_NAME(set)(1.f));
    case BYOC_HARDSWISH:
      return x * BYOC_NAME(clip)(alpha * x + beta, zero, BYOC_NAME(set)(1.f));
    case BYOC_LOGISTIC:
      return BYOC_NAME(logistic)(x);
    case BYOC_SWISH:
      return x * BYOC_NAME(logistic)(alpha * x);
    case BYOC_GELU_ERF:
      return BYOC_NAME(gelu_erf)(x);
    case BYOC_GELU_TANH:
      return BYOC_NAME(gelu_tanh)(x);
    case BYOC_ROUND:
      return BYOC_NAME(round)(x);
    case BYOC_LOG:
      return BYOC_NAME(log)(x);
    case BYOC_SOFT_RELU:
      return BYOC_NAME(softplus)(alpha * x) / alpha;
    default:
      return x;
  }
}

BYOC_INLINE BYOC_VEC BYOC_NAME(binary)(int64_t kind, BYOC_VEC a, BYOC_VEC b) {
  switch (kind) {
    case BYOC_ADD:
      return a + b;
    case BYOC_SUB:
      return a - b;
    case BYOC_MUL:
      return a * b;
    case BYOC_DIV:
      return a / b;
    case BYOC_MAX:
      return BYOC_NAME(pick)(a == a, BYOC_NAME(max)(a, b), a);
    case BYOC_MIN:
      return BYOC_NAME(pick)(a == a, BYOC_NAME(min)(a, b), a);
    default:
      return a;
  }
}

/* A post-operation on rows x columns of the vectors `o`, of which there are all_rows x all_columns;
   their first channel is `channel`. `operand`: all of it, from the first of the vectors on where it
   has a number per element; NULL if there is none. */
BYOC_INLINE void BYOC_NAME(apply)(const byoc_post_op* op, const float* operand, int64_t channel,
                                  int lanes, int all_rows, int all_columns, int rows, int columns,
                                  BYOC_VEC* o) {
  const int all = all_rows * all_columns;
  if (operand == NULL) {
#define BYOC_CASE(kind)                                                    \
  case kind:                                                               \
    for (int i = 0; i < all; ++i) o[i] = BYOC_NAME(unary)(op, kind, o[i]); \
    break;
    switch (op->kind) {
      BYOC_CASE(BYOC_RELU)
      BYOC_CASE(BYOC_CLIP)
      BYOC_CASE(BYOC_LINEAR)
      BYOC_CASE(BYOC_ABS)
      BYOC_CASE(BYOC_SQUARE)
      BYOC_CASE(BYOC_HARDSIGMOID)
      BYOC_CASE(BYOC_HARDSWISH)
      BYOC_CASE(BYOC_LOGISTIC)
      BYOC_CASE(BYOC_SWISH)
      BYOC_CASE(BYOC_GELU_ERF)
      BYOC_CASE(BYOC_GELU_TANH)
      BYOC_CASE(BYOC_ROUND)
      BYOC_CASE(BYOC_LOG)
      BYOC_CASE(BYOC_SOFT_RELU)
      default:
        break;
    }
#undef BYOC_CASE
  } else if (op->form == BYOC_PER_ELEMENT) {
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const float* p = operand + i * op->strides.row + j * op->strides.pixel;
        const int at = i * all_columns + j;
        o[at] = BYOC_NAME(binary)(op->kind, o[at], BYOC_NAME(load_some)(p, lanes));
      }
    }
  } else {
    const BYOC_VEC b = op->form == BYOC_PER_CHANNEL ? BYOC_NAME(load_some)(operand + channel, lanes)
                                                    : BYOC_NAME(set)(operand[0]);
    for (int i = 0; i < all; ++i) o[i] = BYOC_NAME(binary)(op->kind, o[i], b);
  }
}

/* All post-operations on such vectors, of which the first is at `at`. */
BYOC_INLINE void BYOC_NAME(post_operations)(const byoc_post_op* op, int64_t count,
                                            void* const* data, byoc_position at, int lanes,
                                            int all_rows, int all_columns, int rows, int columns,
                                            BYOC_VEC* o) {
  for (const byoc_post_op* end = op + count; op < end; ++op) {
    const float* operand = op->operand < 0 ? NULL : (const float*)data[op->operand];
    if (op->form == BYOC_PER_ELEMENT) operand += byoc_offset(&op->strides, &at);
    BYOC_NAME(apply)(op, operand, at.channel, lanes, all_rows, all_columns, rows, columns, o);
  }
}

/* Such vectors with their bias and post-operations, stored as results. */
BYOC_INLINE void BYOC_NAME(finish_vectors)(const byoc_results* r, byoc_position at, int lanes,
                                           const int all_rows, const int all_columns, int rows,
                                           int columns, BYOC_VEC* o) {
  const byoc_strides* s = &r->strides;
  float* to = r->to + byoc_offset(s, &at);
  if (r->bias != NULL) {
    const BYOC_VEC bias = BYOC_NAME(load_some)(r->bias + at.channel, lanes);
    for (int i = 0; i < all_rows * all_columns; ++i) o[i] += bias;
  }
  BYOC_NAME(post_operations)(r->post_ops, r->count, r->data, at, lanes, all_rows, all_columns, rows,
                             columns, o);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      BYOC_NAME(store_some)(to + i * s->row + j * s->pixel, o[i * all_columns + j], lanes);
    }
  }
}

/* `count` neighbouring pixels from `at` on, of at most `all`. */
BYOC_INLINE void BYOC_NAME(finish_pixels)(const int all, const byoc_results* r, const float* sums,
                                          int64_t step, int count, byoc_position at, int64_t end) {
  const float* from = sums - at.channel;
  for (; at.channel < end; at.channel += BYOC_LANES) {
    const int lanes = (int)byoc_min(end - at.channel, BYOC_LANES);
    BYOC_VEC o[4];
    for (int i = 0; i < all; ++i) {
      o[i] = BYOC_NAME(load)(from + at.channel + (i < count ? i : 0) * step);
    }
    BYOC_NAME(finish_vectors)(r, at, lanes, 1, all, 1, count, o);
  }
}

/* The results of sums in memory, `step` from one pixel to the next: `count` neighbouring pixels
   from `at` on, their channels up to `end`. There is room for whole vectors of sums. */
BYOC_NO_INLINE void BYOC_NAME(finish_sums)(const byoc_results* r, const float* sums, int64_t step,
                                           int64_t count, byoc_position at, int64_t end) {
  for (int64_t i = 0; i < count; i += 4, at.x += 4, sums += 4 * step) {
    if (count - i == 1) {
      BYOC_NAME(finish_pixels)(1, r, sums, step, 1, at, end);
    } else {
      BYOC_NAME(finish_pixels)(4, r, sums, step, (int)byoc_min(count - i, 4), at, end);
    }
  }
}
