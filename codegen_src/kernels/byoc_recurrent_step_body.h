/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_recurrent.h: its products, and the states after a step; no include guard. */

/* One row times some panels: enough sums for a multiplication in each cycle, which the products of
   one or two panels do not have. */
BYOC_INLINE void BYOC_NAME(row_of_panels)(const int panels, const byoc_matrices* m) {
  BYOC_VEC sums[8];
  BYOC_UNROLL
  for (int j = 0; j < 2 * panels; ++j) sums[j] = BYOC_NAME(load)(m->start + j * BYOC_LANES);
  for (int64_t k = 0; k < m->depth; ++k) {
    const float x = m->a[k];
    BYOC_UNROLL
    for (int j = 0; j < 2 * panels; ++j) {
      const float* b = m->b + (j / 2) * m->b_panel + k * BYOC_PANEL + (j % 2) * BYOC_LANES;
      sums[j] += x * BYOC_NAME(load)(b);
    }
  }
  BYOC_UNROLL
  for (int j = 0; j < 2 * panels; ++j) BYOC_NAME(store)(m->c + j * BYOC_LANES, sums[j]);
}

/* Two rows of weights of 16 or 8 bits, a vector of a panel of each. */
BYOC_INLINE void BYOC_NAME(two_rows)(const int bits, const char* b, int vector, BYOC_VEC* even,
                                     BYOC_VEC* odd) {
  if (bits == 16) {
    BYOC_NAME(bits) pairs;
    memcpy(&pairs, b + vector * BYOC_LANES * 4, sizeof(pairs));
    *even = (BYOC_VEC)(pairs << 16);
    *odd = (BYOC_VEC)(pairs & -65536);
    return;
  }
  const uint8_t* bytes = (const uint8_t*)b + vector * BYOC_LANES;
  *even = BYOC_NAME(load_as)(bytes, 0, BYOC_S8, BYOC_LANES);
  *odd = BYOC_NAME(load_as)(bytes, BYOC_PANEL, BYOC_S8, BYOC_LANES);
}

/* Some rows times some panels of such weights, which are numbers of 32 bits in registers alone. The
   even and the odd places are summed up apart, whatever the rows and panels. */
BYOC_INLINE void BYOC_NAME(narrow_tile)(const int bits, const int rows, const int panels,
                                        const byoc_matrices* m, const float* scales) {
  enum { kMost = 12 };
  const int wide = 2 * panels;
  const char* b = (const char*)m->b;
  BYOC_VEC even[kMost], odd[kMost], w, v;
  BYOC_UNROLL
  for (int i = 0; i < rows * wide; ++i) even[i] = odd[i] = BYOC_NAME(set)(0.f);
  for (int64_t k = 0; k + 1 < m->depth; k += 2, b += BYOC_PANEL * bits / 4) {
    BYOC_UNROLL
    for (int j = 0; j < wide; ++j) {
      BYOC_NAME(two_rows)(bits, b + j / 2 * m->b_panel * 4, j % 2, &w, &v);
      BYOC_UNROLL
      for (int r = 0; r < rows; ++r) {
        even[r * wide + j] += m->a[r * m->a_row + k] * w;
        odd[r * wide + j] += m->a[r * m->a_row + k + 1] * v;
      }
    }
  }
  if (m->depth % 2 != 0) {
    BYOC_UNROLL
    for (int j = 0; j < wide; ++j) {
      BYOC_NAME(two_rows)(bits, b + j / 2 * m->b_panel * 4, j % 2, &w, &v);
      BYOC_UNROLL
      for (int r = 0; r < rows; ++r) even[r * wide + j] += m->a[r * m->a_row + m->depth - 1] * w;
    }
  }
  BYOC_UNROLL
  for (int i = 0; i < rows * wide; ++i) {
    const int r = i / wide, column = i % wide * BYOC_LANES;
    BYOC_VEC sum = even[i] + odd[i];
    if (bits == 8) sum *= BYOC_NAME(load)(scales + column);
    sum += BYOC_NAME(load)(m->start + r * m->start_row + column);
    BYOC_NAME(store)(m->c + r * m->c_row + column, sum);
  }
}

/* The same, any number of both. */
BYOC_INLINE void BYOC_NAME(narrow_product)(const int bits, int64_t rows, int64_t panels,
                                           const byoc_matrices* all, const float* scales) {
  enum { kRows = BYOC_LANES == 16 ? 6 : 2, kPanels = BYOC_LANES == 16 ? 4 : 2 };
  for (int64_t i = 0, wide; i < panels; i += wide) {
    wide = rows > 1 ? 1 : panels - i >= kPanels ? kPanels : panels - i >= 2 ? 2 : 1;
    byoc_matrices m = *all;
    m.b += i * m.b_panel;
    byoc_move(&m, 0, i * BYOC_PANEL);
    const float* scale = scales + i * BYOC_PANEL;
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows, byoc_move(&m, kRows, 0)) {
      BYOC_NAME(narrow_tile)(bits, kRows, 1, &m, scale);
    }
#define BYOC_CASE(r, n)                            \
  case 16 * n + r:                                 \
    BYOC_NAME(narrow_tile)(bits, r, n, &m, scale); \
    break;
    switch (16 * wide + rows - row) { /* constants in each, so that the sums stay in registers */
      BYOC_CASE(1, 1)
      BYOC_CASE(1, 2)
#ifdef BYOC_SIMD_AVX512
      BYOC_CASE(1, 4)
      BYOC_CASE(2, 1)
      BYOC_CASE(3, 1)
      BYOC_CASE(4, 1)
      BYOC_CASE(5, 1)
#endif
      default:
        break;
    }
#undef BYOC_CASE
  }
}

/* Rows times panels of weights of 32, 16 or 8 bits. `scales`: of the columns, for 8 bits. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_product)(int64_t bits, int64_t rows, int64_t panels,
                                                 const byoc_matrices* m, const float* scales) {
  if (bits == 16) {
    BYOC_NAME(narrow_product)(16, rows, panels, m, scales);
  } else if (bits == 8) {
    BYOC_NAME(narrow_product)(8, rows, panels, m, scales);
  } else if (rows == 1 && panels == 4) {
    BYOC_NAME(row_of_panels)(4, m);
  } else if (rows == 1 && panels == 2) {
    BYOC_NAME(row_of_panels)(2, m);
  } else if (rows == 1 && panels == 1) {
    BYOC_NAME(row_of_panels)(1, m);
  } else {
    BYOC_NAME(products)(rows, panels, m, NULL);
  }
}

/* An activation; with a constant kind nothing but its own code is left. */
BYOC_INLINE BYOC_VEC BYOC_NAME(curve)(int64_t kind, const byoc_recurrent_curve* c, BYOC_VEC x) {
  const BYOC_VEC zero = BYOC_NAME(set)(0.f), one = BYOC_NAME(set)(1.f);
  const float alpha = (float)c->alpha, beta = (float)c->beta;
  switch (kind) {
    case BYOC_SIGMOID:
      return BYOC_NAME(logistic)(x);
    case BYOC_TANH:
      return BYOC_NAME(tanh)(x);
    case BYOC_ACT_RELU:
      return BYOC_NAME(max)(zero, x);
    case BYOC_AFFINE:
      return alpha * x + beta;
    case BYOC_LEAKY_RELU:
      return BYOC_NAME(if_negative)(x, alpha * x);
    case BYOC_THRESHOLDED_RELU:
      return BYOC_NAME(pick)(x <= alpha, zero, x);
    case BYOC_SCALED_TANH:
      return alpha * BYOC_NAME(tanh)(beta * x);
    case BYOC_HARD_SIGMOID:
      return BYOC_NAME(clip)(alpha * x + beta, zero, one);
    case BYOC_ELU: {
      const BYOC_VEC low = BYOC_NAME(clip)(x, BYOC_NAME(set)(-87.f), zero);
      return BYOC_NAME(if_negative)(x, alpha * (BYOC_NAME(exp)(low) - one));
    }
    case BYOC_SOFTSIGN:
      return x / (one + BYOC_NAME(if_negative)(x, -x));
    default:
      return BYOC_NAME(softplus)(x);
  }
}

/* An activation of what is limited first. */
BYOC_INLINE BYOC_VEC BYOC_NAME(activate)(const byoc_recurrent_params* p, int64_t kind,
                                         const byoc_recurrent_curve* c, BYOC_VEC x) {
  const BYOC_VEC top = BYOC_NAME(set)((float)p->clip);
  return BYOC_NAME(curve)(kind, c, BYOC_NAME(clip)(x, -top, top));
}

/* One vector of units of one sequence: where its gates and states lie. */
typedef struct BYOC_NAME(units) {
  const float* sums;      /* of the first gate; the others lie a panel apart */
  float* resets;          /* GRUs: what belongs to the last gate */
  const float* peepholes; /* NULL, or i; o and f lie `gap` apart */
  int64_t gap;
  const float* before; /* the state */
  float* cell;
} BYOC_NAME(units);

/* The kinds of the three activations; constants where they are the usual ones. */
typedef struct BYOC_NAME(kinds) {
  int64_t f, g, h;
} BYOC_NAME(kinds);

/* The state after a step. */
BYOC_INLINE BYOC_VEC BYOC_NAME(next_state)(const byoc_recurrent_params* p, int64_t cell,
                                           const byoc_recurrent_curve* curves, BYOC_NAME(kinds) k,
                                           const BYOC_NAME(units) * u) {
  const BYOC_VEC one = BYOC_NAME(set)(1.f), first = BYOC_NAME(load)(u->sums);
  if (cell == BYOC_RNN) return BYOC_NAME(activate)(p, k.f, &curves[0], first);
  if (cell == BYOC_LSTM) {
    BYOC_VEC input = first, output = BYOC_NAME(load)(u->sums + BYOC_PANEL);
    BYOC_VEC forget = BYOC_NAME(load)(u->sums + 2 * BYOC_PANEL);
    const BYOC_VEC before = BYOC_NAME(load)(u->cell);
    const BYOC_VEC next =
        BYOC_NAME(activate)(p, k.g, &curves[1], BYOC_NAME(load)(u->sums + 3 * BYOC_PANEL));
    if (u->peepholes != NULL) {
      input += BYOC_NAME(load)(u->peepholes) * before;
      forget += BYOC_NAME(load)(u->peepholes + 2 * u->gap) * before;
    }
    input = BYOC_NAME(activate)(p, k.f, &curves[0], input);
    forget = p->coupled ? one - input : BYOC_NAME(activate)(p, k.f, &curves[0], forget);
    const BYOC_VEC now = forget * before + input * next;
    BYOC_NAME(store)(u->cell, now);
    if (u->peepholes != NULL) output += BYOC_NAME(load)(u->peepholes + u->gap) * now;
    output = BYOC_NAME(activate)(p, k.f, &curves[0], output);
    return output * BYOC_NAME(curve)(k.h, &curves[2], now); /* a cell is not limited */
  }
  BYOC_VEC next = BYOC_NAME(load)(u->sums + 2 * BYOC_PANEL);
  const BYOC_VEC update = BYOC_NAME(activate)(p, k.f, &curves[0], first);
  if (cell == BYOC_LBR_GRU) {
    const BYOC_VEC reset = BYOC_NAME(load)(u->sums + BYOC_PANEL);
    next += BYOC_NAME(activate)(p, k.f, &curves[0], reset) * BYOC_NAME(load)(u->resets);
  }
  next = BYOC_NAME(activate)(p, k.g, &curves[1], next);
  return (one - update) * next + update * BYOC_NAME(load)(u->before);
}
