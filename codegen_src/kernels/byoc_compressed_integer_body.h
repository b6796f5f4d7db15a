/* SPDX-License-Identifier: Apache-2.0
   Sums of byoc_compressed_matmul.h whose sources are rounded to 8 bits, for one instruction set:
   with BYOC_SIMD_VNNI by its products, otherwise by those that add pairs in 16 bits; no include
   guard. Both sums are exact, and equal. */

#ifdef BYOC_SIMD_VNNI
#define BYOC_DOT(name) BYOC_NAME(name##_vnni)
#else
#define BYOC_DOT(name) BYOC_NAME(name##_pairs)
#endif
/* As in byoc_compressed_matmul.h. */
#define BYOC_TILE (BYOC_LANES == 16 ? 6 : 3)
/* So many rows are multiplied by half a panel at a time: the weights come from memory while all of
   them are computed. */
#define BYOC_WIDE_TILE (BYOC_LANES == 16 ? 10 : 4)
#define BYOC_WIDTH (4 * BYOC_LANES)

/* sum += the four products of each lane; `w`: what weights are above the least one, `a` between
   -127 and 127. */
BYOC_INLINE BYOC_INTS BYOC_DOT(dot)(const int bits, BYOC_INTS sum, BYOC_INTS w, BYOC_INTS a) {
#ifdef BYOC_SIMD_VNNI
  (void)bits;
#if defined(BYOC_SIMD_AVX512) && !defined(__clang__)
  /* GCC copies each sum before the instruction that it knows. */
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
  return sum;
#elif defined(BYOC_SIMD_AVX512)
  return _mm512_dpbusd_epi32(sum, w, a);
#else
  return _mm256_dpbusd_avx_epi32(sum, w, a);
#endif
#else
  const BYOC_INTS one = BYOC_OP(set1_epi16)(1);
  if (bits == 8) { /* |w| <= 128: two products of the other's sign fit 16 bits */
#ifdef BYOC_SIMD_AVX512
    const __mmask64 above = _mm512_movepi8_mask(w);
    const __m512i middle = _mm512_set1_epi8((char)0x80);
    w = _mm512_mask_sub_epi8(_mm512_sub_epi8(middle, w), above, w, middle);
    a = _mm512_mask_sub_epi8(_mm512_sub_epi8(_mm512_setzero_si512(), a), above, a,
                             _mm512_setzero_si512());
#else
    w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
    a = _mm256_sign_epi8(a, w);
    w = _mm256_abs_epi8(w);
#endif
  }
  return BYOC_OP(add_epi32)(sum, BYOC_OP(madd_epi16)(BYOC_OP(maddubs_epi16)(w, a), one));
#endif
}

/* `half` of the weights of eight steps of the depth: those of even steps, or of odd ones, where
   they have 4 bits; the first four or the last where they have 8. `w`: of a vector of columns. */
BYOC_INLINE BYOC_INTS BYOC_DOT(half)(const int bits, const int fetches, const char* w,
                                     const int half) {
  const BYOC_INTS low = BYOC_OP(set1_epi8)(15);
  if (bits == 8) w += half * 4 * BYOC_WIDTH;
  if (fetches && (bits == 8 || half == 0)) __builtin_prefetch(w + 4096);
  if (bits == 8) return BYOC_NAME(load_ints)(w);
  const BYOC_INTS v = BYOC_NAME(load_ints)(w);
#ifdef BYOC_SIMD_AVX512
  return _mm512_and_si512(half ? _mm512_maskz_srli_epi32(0xffff, v, 4) : v, low);
#else
  return _mm256_and_si256(half ? _mm256_srli_epi32(v, 4) : v, low);
#endif
}

/* Weights of 4 bits of some groups as bytes, in the order in which their halves are read. */
BYOC_NO_INLINE void BYOC_DOT(unpack)(const byoc_compressed_params* p, const char* b, int64_t groups,
                                     char* to) {
  const int64_t head = byoc_compressed_head(p);
  for (int64_t g = 0; g < groups; ++g) {
    b += head;
    for (int64_t k = 0; k < p->group; k += 8, b += 4 * BYOC_WIDTH) {
      BYOC_UNROLL
      for (int i = 0; i < 8; ++i, to += 4 * BYOC_LANES) {
        const BYOC_INTS half = BYOC_DOT(half)(4, 1, b + i % 4 * 4 * BYOC_LANES, i / 4);
        BYOC_NAME(store_ints)(to, half);
      }
    }
  }
}

/* totals += a b: `rows` rounded rows from group `first` on, `groups` groups of packed weights, of
   which `vectors` columns are multiplied at a time. Their numbers are in `bytes`, if they have been
   unpacked. */
BYOC_INLINE void BYOC_DOT(integer_rows)(const int rows, const int vectors, const int bits,
                                        const int stored, const int has_zeros,
                                        const byoc_compressed_params* p, const char* a,
                                        int64_t first, int64_t groups, const char* b,
                                        const char* bytes, float* totals) {
  const int64_t a_row = byoc_compressed_rounded_bytes(p), group = p->group;
  const int64_t group_bytes = byoc_compressed_group_bytes(p);
  const int64_t head = byoc_compressed_head(p);
  const char* said = a + byoc_compressed_said(p, first);
  a += first * group;
  for (int64_t g = 0; g < groups; ++g, a += group, b += group_bytes, said += sizeof(byoc_rounded)) {
    for (int left = 0; left < 4; left += vectors) {
      const char* w = stored == bits ? b + head : bytes + g * group * BYOC_WIDTH;
      const char* q = a;
      BYOC_INTS sums[BYOC_WIDE_TILE][4];
      w += left * 4 * BYOC_LANES;
      BYOC_UNROLL
      for (int i = 0; i < rows * vectors; ++i) {
        const byoc_rounded* of = (const byoc_rounded*)(said + i / vectors * a_row);
        sums[i / vectors][i % vectors] = BYOC_OP(set1_epi32)(of->start);
      }
      for (int64_t k = 0; k < group; k += 8, q += 8, w += stored * BYOC_WIDTH) {
        BYOC_UNROLL
        for (int half = 0; half < 2; ++half) {
          BYOC_INTS of[4];
          BYOC_UNROLL
          for (int j = 0; j < vectors; ++j) {
            of[j] = BYOC_DOT(half)(stored, stored == bits, w + 4 * j * BYOC_LANES, half);
          }
          BYOC_UNROLL
          for (int r = 0; r < rows; ++r) {
            const BYOC_INTS x = BYOC_OP(set1_epi32)(*(const byoc_four*)(q + r * a_row + 4 * half));
            BYOC_UNROLL
            for (int j = 0; j < vectors; ++j) {
              sums[r][j] = BYOC_DOT(dot)(bits, sums[r][j], of[j], x);
            }
          }
        }
      }
      /* The compiler must not keep the totals elsewhere: there is no register left. */
      __asm__("" : "+r"(totals));
      BYOC_UNROLL
      for (int j = 0; j < vectors; ++j) {
        const BYOC_VEC scale = BYOC_NAME(load_wide)(b, p->scale_bits, left + j);
        BYOC_VEC zero = BYOC_NAME(set)(0.f);
        if (has_zeros) zero = BYOC_NAME(load_wide)(b + head / 2, p->scale_bits, left + j);
        BYOC_UNROLL
        for (int r = 0; r < rows; ++r) {
          const byoc_rounded* of = (const byoc_rounded*)(said + r * a_row);
          float* total = totals + r * BYOC_WIDTH + (left + j) * BYOC_LANES;
          BYOC_VEC x = (BYOC_VEC)BYOC_CONVERT(cvtepi32_ps, sums[r][j]);
          if (has_zeros) x = (BYOC_VEC)BYOC_OP(fnmadd_ps)(zero, BYOC_NAME(set)(of->sum), x);
          x *= scale;
          BYOC_NAME(store)(total, (BYOC_VEC)BYOC_OP(fmadd_ps)(BYOC_NAME(set)(of->scale), x,
                                                              BYOC_NAME(load)(total)));
        }
      }
    }
  }
}

BYOC_NO_INLINE void BYOC_DOT(integer_tile)(int rows, const byoc_compressed_params* p, const char* a,
                                           int64_t first, int64_t groups, const char* b,
                                           const char* bytes, float* totals) {
#define BYOC_CASE(rows, vectors, bits, stored, zeros)                                         \
  case (rows) * 8 + (bits) / 8 * 4 + ((stored) != (bits)) * 2 + (zeros):                      \
    BYOC_DOT(integer_rows)(rows, vectors, bits, stored, zeros, p, a, first, groups, b, bytes, \
                           totals);                                                           \
    break;
#define BYOC_CASES(rows, vectors)   \
  BYOC_CASE(rows, vectors, 4, 4, 0) \
  BYOC_CASE(rows, vectors, 4, 4, 1) \
  BYOC_CASE(rows, vectors, 8, 8, 0) BYOC_CASE(rows, vectors, 8, 8, 1)
#define BYOC_CASES_OF_BYTES(rows) \
  BYOC_CASES(rows, 4) BYOC_CASE(rows, 4, 4, 8, 0) BYOC_CASE(rows, 4, 4, 8, 1)
  switch (rows * 8 + p->bits / 8 * 4 + (bytes != NULL) * 2 +
          (p->has_zero_points != 0)) { /* constants in each, so that the sums stay in registers */
    BYOC_CASES_OF_BYTES(1)
    BYOC_CASES_OF_BYTES(2)
    BYOC_CASES_OF_BYTES(3)
#ifdef BYOC_SIMD_AVX512
    BYOC_CASES_OF_BYTES(4)
    BYOC_CASES_OF_BYTES(5)
    BYOC_CASES_OF_BYTES(6)
    BYOC_CASES(7, 2)
    BYOC_CASES(8, 2)
    BYOC_CASES(9, 2)
    BYOC_CASES(10, 2)
#else
    BYOC_CASES(4, 2)
#endif
    default:
      break;
  }
#undef BYOC_CASES_OF_BYTES
#undef BYOC_CASES
#undef BYOC_CASE
}

/* One panel of results: `rows` rounded rows from `a` on, the first result `at`; `bytes`: room for a
   block of weights. */
BYOC_NO_INLINE void BYOC_DOT(integer_panel)(const byoc_compressed_params* p, const char* a,
                                            int64_t rows, const char* b, char* bytes, float* sums,
                                            const byoc_results* results, byoc_position at) {
  const int64_t groups = p->depth / p->group, end = byoc_min(p->columns, at.channel + BYOC_WIDTH);
  /* Where weights are read several times, they come from the cache. */
  const int is_once = rows <= BYOC_WIDE_TILE, unpacks = p->bits == 4 && !is_once;
  const int64_t block = is_once ? groups : byoc_compressed_block_groups(p);
  const byoc_passes passes = byoc_in_passes(rows, is_once ? BYOC_WIDE_TILE : BYOC_TILE);
  for (int64_t g = 0; g < groups; g += block, b += block * byoc_compressed_group_bytes(p)) {
    const int64_t some = byoc_min(block, groups - g);
    if (unpacks) BYOC_DOT(unpack)(p, b, some, bytes);
    for (int64_t pass = 0, top = 0; pass < passes.count; top += byoc_pass_rows(&passes, pass++)) {
      const int64_t present = byoc_pass_rows(&passes, pass);
      float* totals = sums + top * BYOC_WIDTH;
      for (int64_t i = 0; g == 0 && i < present * BYOC_WIDTH; i += BYOC_LANES) {
        BYOC_NAME(store)(totals + i, BYOC_NAME(set)(0.f));
      }
      BYOC_DOT(integer_tile)((int)present, p, a + top * byoc_compressed_rounded_bytes(p), g, some,
                             b, unpacks ? bytes : NULL, totals);
      if (g + some < groups) continue;
      const byoc_position of = {at.image, at.y, at.x + top, at.channel};
      BYOC_NAME(finish_sums)(results, totals, BYOC_WIDTH, present, of, end);
    }
  }
}

#undef BYOC_DOT
#undef BYOC_TILE
#undef BYOC_WIDE_TILE
#undef BYOC_WIDTH
