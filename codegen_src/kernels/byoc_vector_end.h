/* SPDX-License-Identifier: Apache-2.0
   Takes back the macros and the instruction set of byoc_vector.h; no include guard. */
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
#undef BYOC_INTS
#undef BYOC_LONGS
#undef BYOC_OP
#undef BYOC_CONVERT
