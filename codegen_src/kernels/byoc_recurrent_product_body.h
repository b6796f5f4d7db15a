/* SPDX-License-Identifier: Apache-2.0
   The products of byoc_recurrent.h, behind byoc_bytes_body.h; no include guard. */

#include "byoc_wide_body.h"

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
    switch (rows - row) { /* a constant in each, so that the sums stay in registers */
      case 1:
        if (wide == 1) BYOC_NAME(narrow_tile)(bits, 1, 1, &m, scale);
        if (wide == 2) BYOC_NAME(narrow_tile)(bits, 1, 2, &m, scale);
#ifdef BYOC_SIMD_AVX512
        if (wide == 4) BYOC_NAME(narrow_tile)(bits, 1, 4, &m, scale);
        break;
      case 2:
        BYOC_NAME(narrow_tile)(bits, 2, 1, &m, scale);
        break;
      case 3:
        BYOC_NAME(narrow_tile)(bits, 3, 1, &m, scale);
        break;
      case 4:
        BYOC_NAME(narrow_tile)(bits, 4, 1, &m, scale);
        break;
      case 5:
        BYOC_NAME(narrow_tile)(bits, 5, 1, &m, scale);
#endif
        break;
      default:
        break;
    }
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
