/* SPDX-License-Identifier: Apache-2.0
   Instruction sets that kernels are compiled for, whatever the rest of the file is compiled for. */
#ifndef BYOC_ISA_H_
#define BYOC_ISA_H_

#include <stdint.h>

/* The instruction set of a kernel, a bit each; callers ask the CPU and the limit
   ONEDNN_MAX_CPU_ISA. */
typedef enum byoc_isa { BYOC_AVX2 = 1, BYOC_AVX512 = 2 } byoc_isa;

enum { BYOC_CACHE_LINE_FLOATS = 16 };

/* Floats in a vector; and rows whose sums stay in registers beside a panel of weights, which is two
   vectors wide, or beside two panels. */
#define BYOC_AVX2_LANES 8
#define BYOC_AVX2_ROWS 6      /* 12 registers of sums, 2 of weights */
#define BYOC_AVX2_PAIR_ROWS 2 /* only to divide rows by: there is no room for two panels */
#define BYOC_AVX512_LANES 16
#define BYOC_AVX512_ROWS 14     /* 28 and 2 */
#define BYOC_AVX512_PAIR_ROWS 6 /* 24 and 4 */

/* Rows that wait for weights from memory, which arrive fastest from one panel at a time and
   prefetched. */
enum { BYOC_FEW_ROWS = 2 };

/* How a product fetches what is multiplied next: a part of a line in each of its steps, or a line
   in every so many of them. The second needs a loop inside of a loop, which costs more where these
   steps are few, as those of Winograd's convolutions, which go over a panel a few times. */
enum { BYOC_FETCH_IN_EACH_STEP = 1, BYOC_FETCH_BETWEEN_STEPS = 2, BYOC_FEW_STEPS = 8 };

static inline int64_t byoc_lanes(int64_t isa) {
  return isa == BYOC_AVX512 ? BYOC_AVX512_LANES : BYOC_AVX2_LANES;
}
static inline int64_t byoc_panel(int64_t isa) { return 2 * byoc_lanes(isa); }
static inline int64_t byoc_rows(int64_t isa) {
  return isa == BYOC_AVX512 ? BYOC_AVX512_ROWS : BYOC_AVX2_ROWS;
}
static inline int64_t byoc_pair_rows(int64_t isa) {
  return isa == BYOC_AVX512 ? BYOC_AVX512_PAIR_ROWS : BYOC_AVX2_PAIR_ROWS;
}

/* Whether this compiler knows AMX, and VNNI for AVX-512 and for AVX2. */
#ifndef BYOC_HAS_AMX
#if defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define BYOC_HAS_AMX 1
#else
#define BYOC_HAS_AMX 0
#endif
#endif
#define BYOC_HAS_VNNI BYOC_HAS_AMX

/* The instruction sets that kernels are compiled for. Emitted source, which runs on one only, names
   it to spare the time; the library has all. */
#ifndef BYOC_ISAS
#define BYOC_ISAS 3
#endif

/* Calls the form of a function for an instruction set. */
#if BYOC_ISAS == 1
#define BYOC_FOR_ISA(isa, name, args) byoc_##name##_avx2 args
#elif BYOC_ISAS == 2
#define BYOC_FOR_ISA(isa, name, args) byoc_##name##_avx512 args
#else
#define BYOC_FOR_ISA(isa, name, args) \
  ((isa) == BYOC_AVX512 ? byoc_##name##_avx512 args : byoc_##name##_avx2 args)
#endif

#if defined(__clang__)
#define BYOC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BYOC_UNROLL _Pragma("GCC unroll 36")
#endif

/* Cases of a switch for so many rows, with which sums stay in registers. */
#define BYOC_1_TO_6(CASE, with) \
  CASE(1, with) CASE(2, with) CASE(3, with) CASE(4, with) CASE(5, with) CASE(6, with)
#define BYOC_7_TO_14(CASE, with) \
  CASE(7, with)                  \
  CASE(8, with)                  \
  CASE(9, with) CASE(10, with) CASE(11, with) CASE(12, with) CASE(13, with) CASE(14, with)

/* A function that becomes part of its callers, whose constants it then knows; and one that must
 * not. */
#define BYOC_INLINE static inline __attribute__((always_inline, unused))
#define BYOC_NO_INLINE static __attribute__((noinline, unused))

#endif /* BYOC_ISA_H_ */
