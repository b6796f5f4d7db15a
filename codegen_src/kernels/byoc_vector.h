/* SPDX-License-Identifier: Apache-2.0
   Vectors of one instruction set, products and post-operations on them. Included by
   byoc_each_isa.h, behind BYOC_SIMD_AVX2 or BYOC_SIMD_AVX512, with BYOC_SIMD_AMX or BYOC_SIMD_VNNI
   for these as well; no include guard. From here to the next time that it is included all is
   compiled for that instruction set, and optimised even where the rest of the file is not. */

#ifdef BYOC_NAME /* that next time: takes back its macros and the instruction set */
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef BYOC_NAME
#undef BYOC_LANES
#undef BYOC_ROWS
#undef BYOC_PAIR_ROWS
#undef BYOC_PANEL
#undef BYOC_VEC
#undef BYOC_WIDE
#undef BYOC_FLOATS
#undef BYOC_INTS
#undef BYOC_LONGS
#undef BYOC_OP
#undef BYOC_CONVERT
#undef BYOC_LOAD_SHORTS

#else

#include <immintrin.h>
#include <math.h>

#include "byoc_isa.h"
#include "byoc_post_ops.h"

#if defined(BYOC_SIMD_AVX512)
#define BYOC_NAME(name) byoc_##name##_avx512
#define BYOC_LANES BYOC_AVX512_LANES
#define BYOC_ROWS BYOC_AVX512_ROWS
#define BYOC_PAIR_ROWS BYOC_AVX512_PAIR_ROWS
#define BYOC_FLOATS __m512
#define BYOC_INTS __m512i
#define BYOC_OP(name) _mm512_##name
#define BYOC_CONVERT(name, ...) _mm512_maskz_##name(0xffff, __VA_ARGS__) /* GCC warns of others */
#define BYOC_LOAD_SHORTS(p) _mm256_loadu_si256((const __m256i*)(p)) /* for a vector of floats */
#else
#define BYOC_NAME(name) byoc_##name##_avx2
#define BYOC_LANES BYOC_AVX2_LANES
#define BYOC_ROWS BYOC_AVX2_ROWS
#define BYOC_PAIR_ROWS BYOC_AVX2_PAIR_ROWS
#define BYOC_FLOATS __m256
#define BYOC_INTS __m256i
#define BYOC_OP(name) _mm256_##name
#define BYOC_CONVERT(name, ...) _mm256_##name(__VA_ARGS__)
#define BYOC_LOAD_SHORTS(p) _mm_loadu_si128((const __m128i*)(p))
#endif
#define BYOC_PANEL (2 * BYOC_LANES)
#define BYOC_VEC BYOC_NAME(vec)
#define BYOC_WIDE BYOC_NAME(wide)
#define BYOC_LONGS BYOC_NAME(longs)

#if defined(__clang__)
#if defined(BYOC_SIMD_AMX)
#pragma clang attribute push(                                                            \
    __attribute__((                                                                      \
        target("avx512f,avx512dq,avx512bw,avx512vl,fma,avx512bf16,amx-tile,amx-bf16"))), \
    apply_to = function)
#elif defined(BYOC_SIMD_AVX512) && defined(BYOC_SIMD_VNNI)
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,avx512vnni"))), \
    apply_to = function)
#elif defined(BYOC_SIMD_VNNI)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#elif defined(BYOC_SIMD_AVX512)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))), \
                             apply_to = function)
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#endif
#else
#pragma GCC push_options
#pragma GCC optimize("O3,fp-contract=fast")
#if defined(BYOC_SIMD_AMX)
#pragma GCC target( \
    "avx512f,avx512dq,avx512bw,avx512vl,fma,avx512bf16,amx-tile,amx-bf16,prefer-vector-width=512")
#elif defined(BYOC_SIMD_AVX512) && defined(BYOC_SIMD_VNNI)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,avx512vnni,prefer-vector-width=512")
#elif defined(BYOC_SIMD_VNNI)
#pragma GCC target("avx2,fma,f16c,avxvnni")
#elif defined(BYOC_SIMD_AVX512)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#endif

/* The functions once for each instruction set: several kernels may use them. */
#if (defined(BYOC_SIMD_AVX512) && !defined(BYOC_HAVE_AVX512)) || \
    (defined(BYOC_SIMD_AVX2) && !defined(BYOC_HAVE_AVX2))
#ifdef BYOC_SIMD_AVX512
#define BYOC_HAVE_AVX512
#else
#define BYOC_HAVE_AVX2
#endif
#include "byoc_vector_ops.h"
#include "byoc_vector_tile.h"
#endif

#endif
