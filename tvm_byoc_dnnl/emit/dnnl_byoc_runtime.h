/* SPDX-License-Identifier: Apache-2.0 */
/* What every emitted program shares: memory, execution and errors. Needs oneDNN's C API and the C
   library; C99, and C++ as well.

   An emitted program fills one dnnl_byoc_region: step by step it creates primitives, and says in
   which buffer each argument lies. Everything made on the way belongs to the region and is released
   by dnnl_byoc_destroy, also when something failed in between. */
#ifndef DNNL_BYOC_RUNTIME_H_
#define DNNL_BYOC_RUNTIME_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dnnl.h"

enum { DNNL_BYOC_MAX_ARGS = 64, DNNL_BYOC_ALIGNMENT = 64 };

/* Not worth inlining into hundreds of steps: that is where compilation would spend its time. */
#if defined(__GNUC__)
#define DNNL_BYOC_FUNCTION static __attribute__((unused, noinline))
#else
#define DNNL_BYOC_FUNCTION static inline
#endif

/* Whose memory a buffer is. */
typedef enum {
  DNNL_BYOC_ARENA,    /* the region's, at an offset; several take turns */
  DNNL_BYOC_INPUT,    /* the caller's, read in place */
  DNNL_BYOC_OUTPUT,   /* the caller's, written in place */
  DNNL_BYOC_CONSTANT, /* the caller's, from creation on */
  DNNL_BYOC_PACKED,   /* computed from constants at creation */
  DNNL_BYOC_TEMPORARY /* the same, not needed after it */
} dnnl_byoc_home;

typedef struct {
  dnnl_byoc_home home;
  size_t index; /* which input, output or constant; the offset in the arena */
  size_t bytes;
} dnnl_byoc_buffer;

/* One primitive with its arguments, or (without a primitive) a fill with the bytes of one element.
 */
typedef struct {
  const char* name;
  dnnl_primitive_attr_t attr;
  dnnl_post_ops_t post_ops;
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t primitive;
  int num_args;
  dnnl_exec_arg_t args[DNNL_BYOC_MAX_ARGS];
  int buffers[DNNL_BYOC_MAX_ARGS]; /* by argument; -1: memory of its own */
  size_t offsets[DNNL_BYOC_MAX_ARGS];
  char fill[8];
  size_t fill_bytes, bytes;
} dnnl_byoc_step;

typedef struct {
  const dnnl_byoc_buffer* buffers;
  int num_buffers, num_layouts, num_init, num_steps;
  const void* const* constants;
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  dnnl_memory_desc_t* md; /* the layouts, numbered */
  dnnl_byoc_step* init;   /* run once */
  dnnl_byoc_step* steps;  /* run per call */
  char* arena;
  char** packed;    /* by buffer */
  size_t* capacity; /* of those: packed constants may be larger than planned */
  void* blocks;     /* list of what is allocated */
  void* temporary;  /* the same, until the constants are packed */
  char error[512];
} dnnl_byoc_region;

/* Leaves the calling function with status 1 when a call of oneDNN fails. */
#define DNNL_BYOC_CALL(call)                                                       \
  do {                                                                             \
    dnnl_status_t status_ = (call);                                                \
    if (status_ != dnnl_success) return dnnl_byoc_failed(r, step, #call, status_); \
  } while (0)

/* The same for functions of this header, which write the message themselves. */
#define DNNL_BYOC_TRY(call)    \
  do {                         \
    if ((call) != 0) return 1; \
  } while (0)

DNNL_BYOC_FUNCTION int dnnl_byoc_failed(dnnl_byoc_region* r, const dnnl_byoc_step* step,
                                        const char* call, dnnl_status_t status) {
  snprintf(r->error, sizeof(r->error),
           "%s: oneDNN returned status %d from %.200s. Is this the CPU and the oneDNN that the "
           "program was emitted for?",
           step != NULL && step->name != NULL ? step->name : "setting up", (int)status, call);
  return 1;
}

/* Aligned, and released with the list; NULL when there is no memory. */
DNNL_BYOC_FUNCTION char* dnnl_byoc_allocate(dnnl_byoc_region* r, void** list, size_t bytes) {
  char* block = (char*)malloc(bytes + sizeof(void*) + DNNL_BYOC_ALIGNMENT);
  uintptr_t start;
  if (block == NULL) {
    snprintf(r->error, sizeof(r->error), "out of memory: %lu bytes", (unsigned long)bytes);
    return NULL;
  }
  memcpy(block, list, sizeof(void*));
  *list = block;
  start = (uintptr_t)block + sizeof(void*) + DNNL_BYOC_ALIGNMENT - 1;
  return block + (start / DNNL_BYOC_ALIGNMENT * DNNL_BYOC_ALIGNMENT - (uintptr_t)block);
}

DNNL_BYOC_FUNCTION void dnnl_byoc_release(void** list) {
  while (*list != NULL) {
    void* block = *list;
    memcpy(list, block, sizeof(void*));
    free(block);
  }
}

DNNL_BYOC_FUNCTION int dnnl_byoc_setup(dnnl_byoc_region* r, const dnnl_byoc_buffer* buffers,
                                       int num_buffers, int num_layouts, int num_init,
                                       int num_steps, size_t arena_bytes, int isa,
                                       const void* const* constants) {
  const dnnl_byoc_step* step = NULL;
  memset(r, 0, sizeof(*r));
  if ((int)dnnl_get_effective_cpu_isa() != isa) {
    snprintf(r->error, sizeof(r->error),
             "this program was emitted for a CPU of oneDNN's kind 0x%x, this one is 0x%x, where "
             "other layouts are best. Emit it again on this machine",
             (unsigned)isa, (unsigned)dnnl_get_effective_cpu_isa());
    return 1;
  }
  r->buffers = buffers;
  r->num_buffers = num_buffers;
  r->constants = constants;
  r->md = (dnnl_memory_desc_t*)calloc((size_t)num_layouts + 1, sizeof(*r->md));
  r->init = (dnnl_byoc_step*)calloc((size_t)num_init + 1, sizeof(*r->init));
  r->steps = (dnnl_byoc_step*)calloc((size_t)num_steps + 1, sizeof(*r->steps));
  r->packed = (char**)calloc((size_t)num_buffers + 1, sizeof(*r->packed));
  r->capacity = (size_t*)calloc((size_t)num_buffers + 1, sizeof(*r->capacity));
  if (r->md == NULL || r->init == NULL || r->steps == NULL || r->packed == NULL ||
      r->capacity == NULL) {
    snprintf(r->error, sizeof(r->error), "out of memory");
    return 1;
  }
  r->num_layouts = num_layouts;
  r->num_init = num_init;
  r->num_steps = num_steps;
  r->arena = dnnl_byoc_allocate(r, &r->blocks, arena_bytes);
  if (r->arena == NULL) return 1;
  DNNL_BYOC_CALL(dnnl_engine_create(&r->engine, dnnl_cpu, 0));
  DNNL_BYOC_CALL(dnnl_stream_create(&r->stream, r->engine, dnnl_stream_default_flags));
  return 0;
}

/* A copy of what a primitive descriptor says about a layout. */
DNNL_BYOC_FUNCTION dnnl_status_t dnnl_byoc_query(dnnl_memory_desc_t* md, dnnl_primitive_desc_t pd,
                                                 dnnl_query_t what, int arg) {
  return dnnl_memory_desc_clone(md, dnnl_primitive_desc_query_md(pd, what, arg));
}

/* Whether the elements lie in the same places: the strides of axes of size 1 do not matter. */
DNNL_BYOC_FUNCTION int dnnl_byoc_same_layout(const_dnnl_memory_desc_t a,
                                             const_dnnl_memory_desc_t b) {
  static const dnnl_query_t kSizes[] = {dnnl_query_dims, dnnl_query_padded_dims};
  int ndims = 0, ndims_b = 0, blocks = 0, blocks_b = 0, i;
  dnnl_dims_t* x = NULL;
  dnnl_dims_t* y = NULL;
  dnnl_dims_t* padded = NULL;
  dnnl_data_type_t type = dnnl_data_type_undef, type_b = dnnl_data_type_undef;
  if (a == NULL || b == NULL) return 0;
  if (dnnl_memory_desc_equal(a, b)) return 1;
  dnnl_memory_desc_query(a, dnnl_query_ndims_s32, &ndims);
  dnnl_memory_desc_query(b, dnnl_query_ndims_s32, &ndims_b);
  dnnl_memory_desc_query(a, dnnl_query_data_type, &type);
  dnnl_memory_desc_query(b, dnnl_query_data_type, &type_b);
  if (ndims != ndims_b || type != type_b) return 0;
  for (i = 0; i < 2; ++i) {
    dnnl_memory_desc_query(a, kSizes[i], &x);
    dnnl_memory_desc_query(b, kSizes[i], &y);
    if (x == NULL || y == NULL || memcmp(*x, *y, (size_t)ndims * sizeof(**x)) != 0) return 0;
  }
  padded = x;
  if (dnnl_memory_desc_query(a, dnnl_query_inner_nblks_s32, &blocks) != dnnl_success ||
      dnnl_memory_desc_query(b, dnnl_query_inner_nblks_s32, &blocks_b) != dnnl_success ||
      blocks != blocks_b) {
    return 0;
  }
  if (blocks > 0) {
    static const dnnl_query_t kBlocks[] = {dnnl_query_inner_blks, dnnl_query_inner_idxs};
    for (i = 0; i < 2; ++i) {
      dnnl_memory_desc_query(a, kBlocks[i], &x);
      dnnl_memory_desc_query(b, kBlocks[i], &y);
      if (memcmp(*x, *y, (size_t)blocks * sizeof(**x)) != 0) return 0;
    }
  }
  if (dnnl_memory_desc_query(a, dnnl_query_strides, &x) != dnnl_success ||
      dnnl_memory_desc_query(b, dnnl_query_strides, &y) != dnnl_success) {
    return 0;
  }
  for (i = 0; i < ndims; ++i) {
    if ((*padded)[i] != 1 && (*x)[i] != (*y)[i]) return 0;
  }
  return 1;
}

/* Adds an argument: a part of a buffer, in a layout. */
DNNL_BYOC_FUNCTION int dnnl_byoc_bind(dnnl_byoc_region* r, dnnl_byoc_step* step, int arg,
                                      int buffer, size_t offset, const_dnnl_memory_desc_t md) {
  const dnnl_byoc_buffer* b = &r->buffers[buffer];
  const size_t bytes = dnnl_memory_desc_get_size(md); /* of a part: with the gaps, to its end */
  const int packed = b->home == DNNL_BYOC_PACKED || b->home == DNNL_BYOC_TEMPORARY;
  char* base = NULL;
  if (packed && r->packed[buffer] == NULL) {
    r->capacity[buffer] = bytes > b->bytes ? bytes : b->bytes;
    r->packed[buffer] = dnnl_byoc_allocate(
        r, b->home == DNNL_BYOC_PACKED ? &r->blocks : &r->temporary, r->capacity[buffer]);
    if (r->packed[buffer] == NULL) return 1;
  }
  if (step->num_args == DNNL_BYOC_MAX_ARGS) {
    snprintf(r->error, sizeof(r->error), "%s: more than %d arguments", step->name,
             DNNL_BYOC_MAX_ARGS);
    return 1;
  }
  if (bytes > (packed ? r->capacity[buffer] : b->bytes) ||
      (step->pd != NULL &&
       !dnnl_byoc_same_layout(
           md, dnnl_primitive_desc_query_md(step->pd, dnnl_query_exec_arg_md, arg)))) {
    snprintf(r->error, sizeof(r->error),
             "%s: oneDNN wants argument %d in another layout than when this program was emitted. "
             "Emit it again on this machine, with this oneDNN and this number of threads",
             step->name, arg);
    return 1;
  }
  if (b->home == DNNL_BYOC_ARENA) base = r->arena + b->index;
  if (b->home == DNNL_BYOC_CONSTANT) base = (char*)(uintptr_t)r->constants[b->index];
  if (packed) base = r->packed[buffer];
  step->args[step->num_args].arg = arg;
  step->buffers[step->num_args] = buffer;
  step->offsets[step->num_args] = offset;
  DNNL_BYOC_CALL(dnnl_memory_create(&step->args[step->num_args++].memory, md, r->engine,
                                    base == NULL ? NULL : base + offset));
  return 0;
}

/* Creates the primitive, with its scratchpad: in `buffer` where one was planned (else -1) and is
   large enough still, which depends on the number of threads; otherwise in memory of its own. */
DNNL_BYOC_FUNCTION int dnnl_byoc_finish(dnnl_byoc_region* r, dnnl_byoc_step* step, int buffer) {
  const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(step->pd, dnnl_query_scratchpad_md, 0);
  const size_t bytes = md == NULL ? 0 : dnnl_memory_desc_get_size(md);
  DNNL_BYOC_CALL(dnnl_primitive_create(&step->primitive, step->pd));
  if (bytes == 0) return 0;
  if (buffer >= 0 && bytes <= r->buffers[buffer].bytes) {
    return dnnl_byoc_bind(r, step, DNNL_ARG_SCRATCHPAD, buffer, 0, md);
  }
  if (step->num_args == DNNL_BYOC_MAX_ARGS) {
    snprintf(r->error, sizeof(r->error), "%s: too many arguments", step->name);
    return 1;
  }
  {
    char* own = dnnl_byoc_allocate(r, &r->blocks, bytes);
    if (own == NULL) return 1;
    step->args[step->num_args].arg = DNNL_ARG_SCRATCHPAD;
    step->buffers[step->num_args] = -1;
    DNNL_BYOC_CALL(dnnl_memory_create(&step->args[step->num_args++].memory, md, r->engine, own));
  }
  return 0;
}

/* Makes a step fill a part of a buffer with one element's bytes. */
DNNL_BYOC_FUNCTION int dnnl_byoc_fill(dnnl_byoc_region* r, dnnl_byoc_step* step, int buffer,
                                      size_t offset, const_dnnl_memory_desc_t md,
                                      const char* element, size_t element_bytes) {
  memcpy(step->fill, element, element_bytes);
  step->fill_bytes = element_bytes;
  step->bytes = dnnl_memory_desc_get_size(md);
  return dnnl_byoc_bind(r, step, DNNL_ARG_DST, buffer, offset, md);
}

DNNL_BYOC_FUNCTION int dnnl_byoc_execute(dnnl_byoc_region* r, dnnl_byoc_step* step) {
  if (step->fill_bytes > 0) {
    void* data = NULL;
    size_t i;
    DNNL_BYOC_CALL(dnnl_memory_get_data_handle(step->args[0].memory, &data));
    for (i = 0; i + step->fill_bytes <= step->bytes; i += step->fill_bytes) {
      memcpy((char*)data + i, step->fill, step->fill_bytes);
    }
    return 0;
  }
  DNNL_BYOC_CALL(dnnl_primitive_execute(step->primitive, r->stream, step->num_args, step->args));
  return 0;
}

DNNL_BYOC_FUNCTION void dnnl_byoc_destroy_steps(dnnl_byoc_step** list, int* count) {
  dnnl_byoc_step* steps = *list;
  int i, j;
  for (i = 0; i < *count; ++i) {
    for (j = 0; j < steps[i].num_args; ++j) dnnl_memory_destroy(steps[i].args[j].memory);
    if (steps[i].primitive != NULL) dnnl_primitive_destroy(steps[i].primitive);
    if (steps[i].pd != NULL) dnnl_primitive_desc_destroy(steps[i].pd);
    if (steps[i].post_ops != NULL) dnnl_post_ops_destroy(steps[i].post_ops);
    if (steps[i].attr != NULL) dnnl_primitive_attr_destroy(steps[i].attr);
  }
  free(steps);
  *list = NULL;
  *count = 0;
}

/* Runs what needs to run once: packs the constants. */
DNNL_BYOC_FUNCTION int dnnl_byoc_initialise(dnnl_byoc_region* r) {
  const dnnl_byoc_step* step = NULL;
  int i;
  for (i = 0; i < r->num_init; ++i) DNNL_BYOC_TRY(dnnl_byoc_execute(r, &r->init[i]));
  DNNL_BYOC_CALL(dnnl_stream_wait(r->stream));
  dnnl_byoc_destroy_steps(&r->init, &r->num_init);
  dnnl_byoc_release(&r->temporary);
  return 0;
}

/* One call. Not for two threads at once: the arena and the stream are the region's. */
DNNL_BYOC_FUNCTION int dnnl_byoc_run(dnnl_byoc_region* r, const void* const* inputs,
                                     void* const* outputs) {
  const dnnl_byoc_step* step = NULL;
  int i, j;
  for (i = 0; i < r->num_steps; ++i) {
    step = &r->steps[i];
    for (j = 0; j < step->num_args; ++j) {
      const dnnl_byoc_buffer* b = step->buffers[j] < 0 ? NULL : &r->buffers[step->buffers[j]];
      char* base;
      if (b == NULL || (b->home != DNNL_BYOC_INPUT && b->home != DNNL_BYOC_OUTPUT)) continue;
      base = b->home == DNNL_BYOC_INPUT ? (char*)(uintptr_t)inputs[b->index]
                                        : (char*)outputs[b->index];
      DNNL_BYOC_CALL(dnnl_memory_set_data_handle(step->args[j].memory, base + step->offsets[j]));
    }
    DNNL_BYOC_TRY(dnnl_byoc_execute(r, &r->steps[i]));
  }
  DNNL_BYOC_CALL(dnnl_stream_wait(r->stream));
  return 0;
}

DNNL_BYOC_FUNCTION void dnnl_byoc_destroy(dnnl_byoc_region* r) {
  int i;
  dnnl_byoc_destroy_steps(&r->init, &r->num_init);
  dnnl_byoc_destroy_steps(&r->steps, &r->num_steps);
  for (i = 0; i < r->num_layouts; ++i) {
    if (r->md[i] != NULL) dnnl_memory_desc_destroy(r->md[i]);
  }
  free(r->md);
  free(r->packed);
  free(r->capacity);
  dnnl_byoc_release(&r->blocks);
  dnnl_byoc_release(&r->temporary);
  if (r->stream != NULL) dnnl_stream_destroy(r->stream);
  if (r->engine != NULL) dnnl_engine_destroy(r->engine);
  memset(r, 0, sizeof(*r));
}

#endif /* DNNL_BYOC_RUNTIME_H_ */
