/* SPDX-License-Identifier: Apache-2.0
   The natural logarithm of float32: it is computed in double and rounded once, which gives the
   nearest number for all of them (make docs-elementwise).

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. */
#ifndef BYOC_LOG_H_
#define BYOC_LOG_H_

#include "byoc_log_plan.h"

#define BYOC_BODY "byoc_log_body.h"
#include "byoc_each_isa.h"

BYOC_FUNCTION int byoc_log_on_thread(const int64_t* params, void* const* data, void* scratch,
                                     int64_t part, int64_t parts) {
  const byoc_log_params* p = (const byoc_log_params*)params;
  (void)scratch;
  BYOC_FOR_ISA(p->isa, log_part,
               (p->count * part / parts, p->count * (part + 1) / parts, (const float*)data[0],
                (float*)data[1]));
  return BYOC_OK;
}

/* The kernel. data: the numbers, and their logarithms. */
BYOC_FUNCTION int byoc_log(const int64_t* params, void* const* data, void* scratch, int threads,
                           char* error) {
  const byoc_log_params* p = (const byoc_log_params*)params;
  const int alone = p->count < (int64_t)BYOC_LOG_ALONE;
  (void)error;
  return byoc_on_team(byoc_log_on_thread, params, data, scratch, alone ? 1 : threads);
}

#endif /* BYOC_LOG_H_ */
