/* SPDX-License-Identifier: Apache-2.0
   Includes BYOC_BODY for each instruction set of BYOC_ISAS, and compiles it for that one; no
   include guard. Most kernels name themselves, and have that part behind `#elif defined(BYOC_VEC)`.
 */
#if BYOC_ISAS & 1
#define BYOC_SIMD_AVX2
#include "byoc_vector.h"
#include BYOC_BODY
#include "byoc_vector.h"
#undef BYOC_SIMD_AVX2
#endif
#if BYOC_ISAS & 2
#define BYOC_SIMD_AVX512
#include "byoc_vector.h"
#include BYOC_BODY
#include "byoc_vector.h"
#undef BYOC_SIMD_AVX512
#endif
#undef BYOC_BODY
