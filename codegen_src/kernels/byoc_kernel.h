/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel of ours as a step of a plan. Kernels are files beside this one: byoc_<kernel>.h has its
   parameters, or byoc_<kernel>_plan.h where the library needs these alone, how its weights are
   packed, its code for each instruction set (byoc_each_isa.h), and what a plan calls.

   They are C99 that is C++17 as well, for GCC and Clang on x86-64 (with AMX: GCC 11, Clang 12 or
   newer): the library is built from these files, and emitted source includes the same ones.
   Compilers may contract a * b + c differently; the same compiler gives the same bits, with any
   number of threads. */
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

/* Defines byoc_<name>_on_thread, which computes a part of a kernel: by `call`, to which `p`,
   `data`, `scratch`, `part` and `parts` are known. `p`: the parameters. */
#define BYOC_PARTS(name, Params, call)                                                    \
  BYOC_FUNCTION int byoc_##name##_on_thread(const int64_t* params, void* const* data,     \
                                            void* scratch, int64_t part, int64_t parts) { \
    const Params* p = (const Params*)params;                                              \
    (void)scratch;                                                                        \
    call;                                                                                 \
    return BYOC_OK;                                                                       \
  }

/* Defines the kernel byoc_<name> as well, which computes at most `most` parts at the same time: 1
   where little is to be computed. */
#define BYOC_KERNEL_BY(name, Params, most, call)                                                  \
  BYOC_PARTS(name, Params, call)                                                                  \
  BYOC_FUNCTION int byoc_##name(const int64_t* params, void* const* data, void* scratch,          \
                                int threads, char* error) {                                       \
    const Params* p = (const Params*)params;                                                      \
    (void)p;                                                                                      \
    (void)error;                                                                                  \
    return byoc_on_team(byoc_##name##_on_thread, params, data, scratch, byoc_min(threads, most)); \
  }

/* The same by byoc_<name>_part, or by BYOC_NAME(<name>_part), which each instruction set has. */
#define BYOC_KERNEL(name, Params, most) \
  BYOC_KERNEL_BY(name, Params, most, byoc_##name##_part(p, data, part, parts))
#define BYOC_PARTS_FOR_ISA(name, Params, isa) \
  BYOC_PARTS(name, Params, BYOC_FOR_ISA(isa, name##_part, (p, data, scratch, part, parts)))
#define BYOC_KERNEL_FOR_ISA(name, Params, isa, most) \
  BYOC_KERNEL_BY(name, Params, most,                 \
                 BYOC_FOR_ISA(isa, name##_part, (p, data, scratch, part, parts)))

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

/* Rows and columns (in panels) of one thread: its place in a grid of threads. */
typedef struct byoc_share {
  int64_t first_row, last_row, first_panel, last_panel;
} byoc_share;

/* The grid whose threads have the least to multiply and to read; `unit`: rows that are multiplied
   at once; `panel`: columns of a panel. */
static inline byoc_share byoc_divide(int64_t all_rows, int64_t unit, int64_t all_columns,
                                     int64_t panel, int64_t thread, int64_t team) {
  const int64_t passes = (all_rows + unit - 1) / unit, panels = (all_columns + panel - 1) / panel;
  int64_t down = 1, least = -1;
  for (int64_t d = 1; d <= team; ++d) {
    const int64_t across = team / d;
    if (d * across != team) continue;
    const int64_t rows = (passes + d - 1) / d * unit;
    const int64_t columns = (panels + across - 1) / across * panel;
    const int64_t cost = rows * columns + 16 * (rows + columns);
    if (least >= 0 && cost >= least) continue;
    least = cost;
    down = d;
  }
  const int64_t across = team / down, row = thread / across, column = thread % across;
  byoc_share share;
  share.first_row = passes * row / down * unit;
  share.last_row = byoc_min(passes * (row + 1) / down * unit, all_rows);
  share.first_panel = panels * column / across;
  share.last_panel = panels * (column + 1) / across;
  return share;
}

/* A panel of weights, `panel` columns wide, of which `columns` are there and zeros fill up the
   rest: a row of it for each step of the depth. Number (k, n) lies at k * down + n * across. */
BYOC_FUNCTION void byoc_pack_panel(const float* weights, int64_t down, int64_t across,
                                   int64_t depth, int64_t columns, int64_t panel, float* to) {
  enum { kDeep = 16 }; /* a line of the cache where the weights are transposed */
  for (int64_t top = 0; top < depth; top += kDeep) {
    const int64_t bottom = byoc_min(top + kDeep, depth);
    if (columns < panel) memset(to + top * panel, 0, (size_t)((bottom - top) * panel) * 4);
    for (int64_t k = top; k < bottom && across == 1; ++k) {
      memcpy(to + k * panel, weights + k * down, (size_t)columns * 4);
    }
    for (int64_t n = 0; n < columns && across != 1; ++n) {
      const float* column = weights + n * across;
      /* More columns than the hardware follows: it takes twice as long without this. */
      if (bottom < depth) __builtin_prefetch(column + bottom * down);
      for (int64_t k = top; k < bottom; ++k) to[k * panel + n] = column[k * down];
    }
  }
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
