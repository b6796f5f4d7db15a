/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel of ours as a step of a plan. Each kernel is one file beside this one, written in C99
   that is C++ as well, since emitted source ships the very same file. */
#ifndef BYOC_KERNEL_H_
#define BYOC_KERNEL_H_

#include "byoc_plan.h"
#include "byoc_team.h"

/* `params`: its numbers, sizes among them; `data`: where its arguments lie, in the order in which
   they were bound; `scratch`: memory that it may use, NULL if it asked for none; `threads`: how
   many it may use, with OpenMP. Returns BYOC_OK, or BYOC_FAILED with a message of BYOC_ERROR_BYTES.
 */
typedef int (*byoc_kernel)(const int64_t* params, void* const* data, void* scratch, int threads,
                           char* error);

typedef struct {
  byoc_kernel kernel;
  int scratch;       /* the argument that it is, or -1 */
  int64_t params[1]; /* as many as there are */
} byoc_kernel_call;

enum { BYOC_COPY_ALONE = 1 << 16 /* bytes that are not worth waking another thread to copy */ };

static inline int64_t byoc_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t byoc_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* Rows in passes of nearly equal length. A division takes as long as dozens of products, so nothing
   is divided in the loop over the passes. */
typedef struct byoc_passes {
  int64_t count, rows, longer; /* the first `longer` passes have a row more */
} byoc_passes;
static inline byoc_passes byoc_in_passes(int64_t rows, int64_t at_once) {
  byoc_passes passes;
  passes.count = (rows + at_once - 1) / at_once;
  passes.rows = rows / byoc_max(passes.count, 1);
  passes.longer = rows - passes.rows * passes.count;
  return passes;
}
static inline int64_t byoc_pass_rows(const byoc_passes* passes, int64_t pass) {
  return passes->rows + (pass < passes->longer);
}

static inline int64_t byoc_round_up(int64_t a, int64_t unit) {
  return (a + unit - 1) / unit * unit;
}

BYOC_FUNCTION int byoc_kernel_run(const byoc_step* step, void* own, void* const* data,
                                  char* error) {
  const byoc_kernel_call* call = (const byoc_kernel_call*)step->state;
  (void)own;
  return call->kernel(call->params, data, call->scratch < 0 ? NULL : data[call->scratch],
                      byoc_threads(), error);
}

/* Makes a step run a kernel, once its arguments are bound. `scratch`: a buffer of the plan with
   `scratch_bytes`, for none -1 and 0. */
BYOC_FUNCTION int byoc_use_kernel(byoc_plan* p, byoc_step* step, byoc_kernel kernel,
                                  const int64_t* params, size_t num_params, int scratch,
                                  size_t scratch_bytes) {
  static const byoc_step_type kType = {NULL, NULL, byoc_kernel_run, free};
  byoc_kernel_call* call =
      (byoc_kernel_call*)calloc(1, sizeof(*call) + num_params * sizeof(*params));
  if (call == NULL) return byoc_no_memory(p->error, sizeof(*call));
  step->type = &kType;
  step->state = call;
  call->kernel = kernel;
  call->scratch = -1;
  memcpy(call->params, params, num_params * sizeof(*params));
  if (scratch_bytes == 0) return BYOC_OK;
  call->scratch = step->num_args;
  return byoc_bind(p, step, scratch, 0, scratch_bytes, /*written=*/1);
}

#endif /* BYOC_KERNEL_H_ */
