/* SPDX-License-Identifier: Apache-2.0
   Includes BYOC_BODY, the part of a kernel that is compiled once per instruction set, for those of
   BYOC_ISAS; no include guard. */
#if BYOC_ISAS & 1
#define BYOC_SIMD_AVX2
#include BYOC_BODY
#undef BYOC_SIMD_AVX2
#endif
#if BYOC_ISAS & 2
#define BYOC_SIMD_AVX512
#include BYOC_BODY
#undef BYOC_SIMD_AVX512
#endif
#undef BYOC_BODY
