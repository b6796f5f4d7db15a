/* SPDX-License-Identifier: Apache-2.0 */
/* The header of emitted source: a region, which is a plan with the layouts of oneDNN that its steps
   share. Emitted source makes it call by call, and byoc_run.h runs it. */
#ifndef DNNL_BYOC_RUNTIME_H_
#define DNNL_BYOC_RUNTIME_H_

#include "byoc_run.h"
/* byoc_run.h stands first: it asks the system for what C99 hides. */
#include <math.h>

#include "byoc_kernel.h"
#include "dnnl_byoc_primitive.h"

typedef struct {
  byoc_plan plan;
  dnnl_engine_t engine;
  dnnl_memory_desc_t* md; /* the layouts, numbered */
  int num_layouts;
} dnnl_byoc_region;

#define DNNL_BYOC_CALL(call) DNNL_BYOC_CHECK(r->plan.error, step->step->name, call)

/* Begins a step of oneDNN, and leaves the calling function when there is no memory for it. */
#define DNNL_BYOC_BEGIN(list, index, name)                                       \
  dnnl_byoc_step* step = dnnl_byoc_begin(r->engine, &r->plan.list[index], name); \
  if (step == NULL) return byoc_no_memory(r->plan.error, sizeof(*step))

BYOC_FUNCTION int dnnl_byoc_setup(dnnl_byoc_region* r, const byoc_buffer* buffers, int num_buffers,
                                  int num_layouts, int num_init, int num_steps, size_t arena_bytes,
                                  int isa, const void* const* constants) {
  const int status =
      byoc_setup(&r->plan, buffers, num_buffers, num_init, num_steps, arena_bytes, constants);
  r->engine = NULL;
  r->num_layouts = num_layouts;
  r->md = (dnnl_memory_desc_t*)calloc((size_t)num_layouts + 1, sizeof(*r->md));
  BYOC_TRY(status);
  if (r->md == NULL) return byoc_no_memory(r->plan.error, sizeof(*r->md));
  if ((int)dnnl_get_effective_cpu_isa() != isa) {
    snprintf(r->plan.error, sizeof(r->plan.error),
             "this program was emitted for a CPU of oneDNN's kind 0x%x, this one is 0x%x, where "
             "other layouts are best. Emit it again on this machine",
             (unsigned)isa, (unsigned)dnnl_get_effective_cpu_isa());
    return BYOC_FAILED;
  }
  DNNL_BYOC_CHECK(r->plan.error, "setting up", dnnl_engine_create(&r->engine, dnnl_cpu, 0));
  return BYOC_OK;
}

/* A copy of a layout of a primitive descriptor. */
BYOC_FUNCTION dnnl_status_t dnnl_byoc_query(dnnl_memory_desc_t* md, dnnl_primitive_desc_t pd,
                                            dnnl_query_t what, int arg) {
  return dnnl_memory_desc_clone(md, dnnl_primitive_desc_query_md(pd, what, arg));
}

/* Adds an argument: a part of a buffer, in a layout that must still be the one oneDNN wants. */
BYOC_FUNCTION int dnnl_byoc_bind(dnnl_byoc_region* r, dnnl_byoc_step* step, int arg, int buffer,
                                 size_t offset, const_dnnl_memory_desc_t md) {
  const int fits = byoc_is_packed(&r->plan, buffer) ||
                   dnnl_memory_desc_get_size(md) <= r->plan.buffers[buffer].bytes;
  /* Scales and zero points have no layout to ask for. */
  const int is_attribute = arg < DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE &&
                           (arg & (DNNL_ARG_ATTR_SCALES | DNNL_ARG_ATTR_ZERO_POINTS)) != 0;
  if (!fits || (step->pd != NULL && !is_attribute &&
                !dnnl_byoc_same_layout(
                    md, dnnl_primitive_desc_query_md(step->pd, dnnl_query_exec_arg_md, arg)))) {
    snprintf(r->plan.error, sizeof(r->plan.error),
             "%s: oneDNN wants argument %d in another layout than when this program was emitted. "
             "Emit it again on this machine, with this oneDNN and this number of threads",
             step->step->name, arg);
    return BYOC_FAILED;
  }
  return dnnl_byoc_add_arg(&r->plan, step, arg, buffer, offset, md);
}

/* Creates the primitive, with its scratchpad: in `buffer` where one was planned (else -1) and is
   large enough still, which depends on the number of threads; otherwise in memory of its own. */
BYOC_FUNCTION int dnnl_byoc_finish(dnnl_byoc_region* r, dnnl_byoc_step* step, int buffer) {
  const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(step->pd, dnnl_query_scratchpad_md, 0);
  const size_t bytes = md == NULL ? 0 : dnnl_memory_desc_get_size(md);
  step->from = step->pd;
  if (buffer >= 0 && bytes > r->plan.buffers[buffer].bytes) buffer = -1;
  if (bytes != 0) {
    BYOC_TRY(dnnl_byoc_add_arg(&r->plan, step, DNNL_ARG_SCRATCHPAD, buffer, 0, md));
  }
  return dnnl_byoc_create(&r->plan, step);
}

/* One call; any number of threads may call. Returns 0, or another number with a message in
   `error`, which has room for BYOC_ERROR_BYTES. */
BYOC_FUNCTION int dnnl_byoc_run(dnnl_byoc_region* r, const void* const* inputs,
                                void* const* outputs, char* error) {
  return byoc_run(&r->plan, inputs, outputs, error);
}

/* When no call is running any more. */
BYOC_FUNCTION void dnnl_byoc_destroy(dnnl_byoc_region* r) {
  int i;
  byoc_destroy(&r->plan);
  for (i = 0; r->md != NULL && i < r->num_layouts; ++i) {
    if (r->md[i] != NULL) dnnl_memory_desc_destroy(r->md[i]);
  }
  free(r->md);
  if (r->engine != NULL) dnnl_engine_destroy(r->engine);
  memset(r, 0, sizeof(*r));
}

#endif /* DNNL_BYOC_RUNTIME_H_ */
