/* SPDX-License-Identifier: Apache-2.0
   Part of byoc_integer.h: products of numbers in 16 bits for one instruction set, with
   BYOC_SIMD_VNNI by one instruction instead of two; no include guard. Both are exact, and equal. */

#ifdef BYOC_SIMD_VNNI
#define BYOC_PAIRS(name) BYOC_NAME(name##_vnni)
#else
#define BYOC_PAIRS(name) BYOC_NAME(name##_pairs)
#endif

/* Adds products to a sum, which stays in its register: without this GCC computes all products of a
   step before it adds them, and has too few registers for that. With AVX2, and with VNNI, it copies
   each sum unless the instruction is written here: a quarter of all instructions. */
BYOC_INLINE void BYOC_PAIRS(add_products)(BYOC_INTS* sum, BYOC_INTS x, BYOC_INTS w) {
#if defined(BYOC_SIMD_VNNI) && defined(BYOC_SIMD_AVX512) && defined(__clang__)
  *sum = _mm512_dpwssd_epi32(*sum, x, w);
#elif defined(BYOC_SIMD_VNNI) && defined(BYOC_SIMD_AVX512)
  __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(w));
#elif defined(BYOC_SIMD_VNNI)
  *sum = _mm256_dpwssd_avx_epi32(*sum, x, w);
#elif defined(BYOC_SIMD_AVX512)
  *sum = BYOC_OP(add_epi32)(*sum, BYOC_OP(madd_epi16)(x, w));
  __asm__ volatile("" : "+v"(*sum));
#else
  __asm__ volatile("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(BYOC_OP(madd_epi16)(x, w)));
#endif
}

/* `rows` rows of `a` times a panel, `pairs` deep. */
BYOC_INLINE void BYOC_PAIRS(rows_of_pairs)(const int rows, const int16_t* a, int64_t a_row,
                                           const int16_t* b, int64_t pairs, int32_t* c) {
  BYOC_INTS sums[BYOC_ROWS][2];
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    sums[i][0] = sums[i][1] = BYOC_OP(set1_epi32)(0);
  }
  for (int64_t k = 0; k < pairs; ++k) {
    const BYOC_INTS w0 = BYOC_NAME(load_ints)(b + k * 2 * BYOC_PANEL);
    const BYOC_INTS w1 = BYOC_NAME(load_ints)(b + k * 2 * BYOC_PANEL + BYOC_PANEL);
    BYOC_UNROLL
    for (int i = 0; i < rows; ++i) {
      int32_t pair;
      memcpy(&pair, a + i * a_row + 2 * k, 4);
      const BYOC_INTS x = BYOC_OP(set1_epi32)(pair);
      BYOC_PAIRS(add_products)(&sums[i][0], x, w0);
      BYOC_PAIRS(add_products)(&sums[i][1], x, w1);
    }
  }
  BYOC_UNROLL
  for (int i = 0; i < rows; ++i) {
    BYOC_NAME(store_ints)(c + i * BYOC_PANEL, sums[i][0]);
    BYOC_NAME(store_ints)(c + i * BYOC_PANEL + BYOC_LANES, sums[i][1]);
  }
}

BYOC_NO_INLINE void BYOC_PAIRS(integer_product)(int rows, const int16_t* a, int64_t a_row,
                                                const int16_t* b, int64_t pairs, int32_t* c) {
#define BYOC_CASE(m, to)                                  \
  case m:                                                 \
    BYOC_PAIRS(rows_of_pairs)(m, a, a_row, b, pairs, to); \
    break;
  switch (rows) {
    BYOC_1_TO_6(BYOC_CASE, c)
#ifdef BYOC_SIMD_AVX512
    BYOC_7_TO_14(BYOC_CASE, c)
#endif
    default:
      break;
  }
#undef BYOC_CASE
}

#undef BYOC_PAIRS
