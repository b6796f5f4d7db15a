/* SPDX-License-Identifier: Apache-2.0
   Instruction sets that kernels are compiled for, whatever the rest of the file is compiled for. */
#ifndef BYOC_ISA_H_
#define BYOC_ISA_H_

/* What a kernel may use; the caller asks the CPU, and the user's limit (ONEDNN_MAX_CPU_ISA). */
typedef enum byoc_isa { BYOC_AVX2 = 1, BYOC_AVX512 = 2 } byoc_isa;

#if defined(__clang__)
#define BYOC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BYOC_UNROLL _Pragma("GCC unroll 36")
#endif

/* A function that becomes part of its callers, whose constants it then knows; and one that must
 * not. */
#define BYOC_INLINE static inline __attribute__((always_inline, unused))
#define BYOC_NO_INLINE static __attribute__((noinline, unused))

#endif /* BYOC_ISA_H_ */
