/* SPDX-License-Identifier: Apache-2.0 */
/* What all emitted source shares, first half: types, memory, and the creation of primitives. Needs
   oneDNN's C API and POSIX; C99, and C++ as well. dnnl_byoc_runtime.h is the other half, and what
   to include.

   Emitted source fills one dnnl_byoc_region: step by step it creates primitives, and says in which
   buffer each argument lies. From then on the region does not change, and any number of threads may
   run it: what a call needs for itself stands in a dnnl_byoc_context, of which a free list is kept.
   Everything made on the way belongs to the region and is released by dnnl_byoc_destroy, also when
   something failed in between. */
#ifndef DNNL_BYOC_PLAN_H_
#define DNNL_BYOC_PLAN_H_

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1 /* for madvise in C99 */
#endif

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "dnnl.h"

enum {
  DNNL_BYOC_ALIGNMENT = 64,
  DNNL_BYOC_HUGE_PAGE = 2 << 20, /* for what is at least two of them */
  DNNL_BYOC_ERROR_BYTES = 512
};

/* Not worth inlining into hundreds of steps: that is where compilation would spend its time. */
#if defined(__GNUC__)
#define DNNL_BYOC_FUNCTION static __attribute__((unused, noinline))
#else
#define DNNL_BYOC_FUNCTION static inline
#endif

/* Whose memory a buffer is. */
typedef enum {
  DNNL_BYOC_ARENA,    /* the call's, at an offset; several take turns */
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
  int alias; /* 1 + the output that is written over this input; 0 for none */
} dnnl_byoc_buffer;

/* One argument of a primitive: a part of a buffer, in a layout. */
typedef struct {
  int arg;    /* DNNL_ARG_* */
  int buffer; /* -1: memory of its own */
  size_t offset;
  const_dnnl_memory_desc_t md; /* owned by the region or the primitive descriptor */
} dnnl_byoc_arg;

/* One primitive with its arguments, or (without a primitive) a fill with the bytes of one element.
 */
typedef struct {
  const char* name;
  dnnl_primitive_attr_t attr;
  dnnl_post_ops_t post_ops;
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t primitive;
  int first_arg, num_args; /* in the region's list */
  char fill[8];
  size_t fill_bytes, bytes;
} dnnl_byoc_step;

/* What one call needs for itself. */
typedef struct dnnl_byoc_context {
  struct dnnl_byoc_context* next;
  dnnl_stream_t stream;
  dnnl_exec_arg_t* args; /* by argument of the region */
  int num_args;
  void* blocks; /* the arena, scratchpads */
} dnnl_byoc_context;

typedef struct {
  const dnnl_byoc_buffer* buffers;
  int num_buffers, num_layouts, num_init, num_steps, num_args, max_args;
  size_t arena_bytes;
  const void* const* constants;
  dnnl_engine_t engine;
  dnnl_memory_desc_t* md; /* the layouts, numbered */
  dnnl_byoc_step* init;   /* run once */
  dnnl_byoc_step* steps;  /* run per call */
  dnnl_byoc_arg* args;    /* of all steps */
  char** packed;          /* by buffer */
  size_t* capacity;       /* of those: packed constants may be larger than planned */
  void* blocks;           /* list of what is allocated */
  void* temporary;        /* the same, until the constants are packed */
  pthread_mutex_t lock;   /* of the two below */
  dnnl_byoc_context* idle;
  int running;
  char error[DNNL_BYOC_ERROR_BYTES]; /* of the creation */
} dnnl_byoc_region;

/* Leaves the calling function with status 1 when a call of oneDNN fails. */
#define DNNL_BYOC_CHECK(error, step, call)                                             \
  do {                                                                                 \
    dnnl_status_t status_ = (call);                                                    \
    if (status_ != dnnl_success) return dnnl_byoc_failed(error, step, #call, status_); \
  } while (0)

#define DNNL_BYOC_CALL(call) DNNL_BYOC_CHECK(r->error, step, call)

/* The same for functions of this header, which write the message themselves. */
#define DNNL_BYOC_TRY(call)    \
  do {                         \
    if ((call) != 0) return 1; \
  } while (0)

DNNL_BYOC_FUNCTION int dnnl_byoc_failed(char* error, const dnnl_byoc_step* step, const char* call,
                                        dnnl_status_t status) {
  snprintf(error, DNNL_BYOC_ERROR_BYTES,
           "%s: oneDNN returned status %d from %.200s. Is this the CPU and the oneDNN that the "
           "program was emitted for?",
           step != NULL && step->name != NULL ? step->name : "setting up", (int)status, call);
  return 1;
}

/* Aligned, and released with the list; NULL with a message when there is no memory. */
DNNL_BYOC_FUNCTION char* dnnl_byoc_allocate(void** list, size_t bytes, char* error) {
  const int huge = bytes >= 2 * (size_t)DNNL_BYOC_HUGE_PAGE;
  const size_t alignment = huge ? DNNL_BYOC_HUGE_PAGE : DNNL_BYOC_ALIGNMENT;
  char* block = (char*)malloc(bytes + sizeof(void*) + alignment);
  char* data;
  if (block == NULL) {
    snprintf(error, DNNL_BYOC_ERROR_BYTES, "out of memory: %lu bytes", (unsigned long)bytes);
    return NULL;
  }
  memcpy(block, list, sizeof(void*));
  *list = block;
  data = block + sizeof(void*) + alignment - 1;
  data -= (uintptr_t)data % alignment;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data, bytes, MADV_HUGEPAGE); /* advice only: failure is harmless */
#endif
  return data;
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
  pthread_mutex_init(&r->lock, NULL);
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
  r->arena_bytes = arena_bytes;
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
  DNNL_BYOC_CALL(dnnl_engine_create(&r->engine, dnnl_cpu, 0));
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

DNNL_BYOC_FUNCTION int dnnl_byoc_add_arg(dnnl_byoc_region* r, dnnl_byoc_step* step, int arg,
                                         int buffer, size_t offset, const_dnnl_memory_desc_t md) {
  dnnl_byoc_arg* added;
  if (r->num_args == r->max_args) {
    const int wanted = 2 * r->max_args + 64;
    dnnl_byoc_arg* grown = (dnnl_byoc_arg*)realloc(r->args, (size_t)wanted * sizeof(*grown));
    if (grown == NULL) {
      snprintf(r->error, sizeof(r->error), "%s: out of memory", step->name);
      return 1;
    }
    r->args = grown;
    r->max_args = wanted;
  }
  if (step->num_args == 0) step->first_arg = r->num_args;
  added = &r->args[step->first_arg + step->num_args++];
  ++r->num_args;
  added->arg = arg;
  added->buffer = buffer;
  added->offset = offset;
  added->md = md;
  return 0;
}

/* Adds an argument: a part of a buffer, in a layout. */
DNNL_BYOC_FUNCTION int dnnl_byoc_bind(dnnl_byoc_region* r, dnnl_byoc_step* step, int arg,
                                      int buffer, size_t offset, const_dnnl_memory_desc_t md) {
  const dnnl_byoc_buffer* b = &r->buffers[buffer];
  const size_t bytes = dnnl_memory_desc_get_size(md); /* of a part: with the gaps, to its end */
  const int packed = b->home == DNNL_BYOC_PACKED || b->home == DNNL_BYOC_TEMPORARY;
  /* Scales and zero points have no layout to ask for. */
  const int is_attribute = arg < DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE &&
                           (arg & (DNNL_ARG_ATTR_SCALES | DNNL_ARG_ATTR_ZERO_POINTS)) != 0;
  if (packed && r->packed[buffer] == NULL) {
    r->capacity[buffer] = bytes > b->bytes ? bytes : b->bytes;
    r->packed[buffer] = dnnl_byoc_allocate(b->home == DNNL_BYOC_PACKED ? &r->blocks : &r->temporary,
                                           r->capacity[buffer], r->error);
    if (r->packed[buffer] == NULL) return 1;
  }
  if (bytes > (packed ? r->capacity[buffer] : b->bytes) ||
      (step->pd != NULL && !is_attribute &&
       !dnnl_byoc_same_layout(
           md, dnnl_primitive_desc_query_md(step->pd, dnnl_query_exec_arg_md, arg)))) {
    snprintf(r->error, sizeof(r->error),
             "%s: oneDNN wants argument %d in another layout than when this program was emitted. "
             "Emit it again on this machine, with this oneDNN and this number of threads",
             step->name, arg);
    return 1;
  }
  return dnnl_byoc_add_arg(r, step, arg, buffer, offset, md);
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
  return dnnl_byoc_add_arg(r, step, DNNL_ARG_SCRATCHPAD, -1, 0, md);
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

#endif /* DNNL_BYOC_PLAN_H_ */
