/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_log.h. */
#ifndef BYOC_LOG_PLAN_H_
#define BYOC_LOG_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"

typedef struct __attribute__((may_alias)) byoc_log_params {
  int64_t isa; /* byoc_isa */
  int64_t count;
} byoc_log_params;

enum { BYOC_LOG_ALONE = 1 << 12 /* numbers that are not worth waking another thread */ };

#endif /* BYOC_LOG_PLAN_H_ */
