/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_normalize.h, and the memory that it takes. */
#ifndef BYOC_NORMALIZE_PLAN_H_
#define BYOC_NORMALIZE_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* What is made of each row; the mean is one number. */
typedef enum byoc_row_form { BYOC_LAYER, BYOC_RMS, BYOC_SOFTMAX, BYOC_MEAN } byoc_row_form;

/* Rows follow each other. Numbers that are given when it runs stand in the data: their positions
   there, -1 for none. */
typedef struct __attribute__((may_alias)) byoc_normalize_params {
  int64_t isa;  /* byoc_isa */
  int64_t form; /* byoc_row_form */
  int64_t rows, columns;
  int64_t src_dtype, dst_dtype; /* BYOC_S8, BYOC_U8, BYOC_F32: softmax of bytes only, mean of F32 */
  int64_t src_scale, dst_scale, dst_zero, gamma, beta, result;
  double epsilon;
  int64_t threads; /* that there is scratch memory for */
} byoc_normalize_params;

enum { BYOC_NORMALIZE_ALONE = 1 << 12 /* numbers that are not worth waking another thread */ };

/* The numbers that a thread keeps: a row, filled up to what is quantised at once. */
static inline int64_t byoc_normalize_numbers(const byoc_normalize_params* p) {
  return byoc_round_up(p->columns, 2 * byoc_panel(p->isa));
}

#endif /* BYOC_NORMALIZE_PLAN_H_ */
