/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that can be run, first half: buffers, steps and their arguments. C99, and C++ as well,
   with POSIX alone: emitted source ships this very file, and the compiled module is built from it.
   byoc_run.h is the other half, and the header to include.

   The code that makes a plan fills one byoc_plan: the buffer of each argument of each step is in
   it. From then on the plan does not change, and any number of threads may run it: the memory of
   a call is a byoc_context, of which a free list is kept. All memory of the creation belongs to the
   plan and is released by byoc_destroy, also when the creation failed.
 */
#ifndef BYOC_PLAN_H_
#define BYOC_PLAN_H_

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1 /* for madvise in C99 */
#endif

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
  BYOC_ALIGNMENT = 64,
  BYOC_PAGE = 4096,
  BYOC_HUGE_PAGE = 2 << 20, /* for memory of at least two of them */
  BYOC_ERROR_BYTES = 512,
  BYOC_MAX_IDLE = 64 /* contexts that are kept */
};

/* The results of the functions. */
enum {
  BYOC_OK = 0,
  BYOC_FAILED = 1 /* with a message */,
  BYOC_NO_MEMORY = 2 /* the same */,
  BYOC_BAD_INDEX = 3 /* the same: in the data of a call */
};

/* Not inlined into hundreds of steps, which would cost most of the time of compilation. */
#if defined(__GNUC__)
#define BYOC_FUNCTION static __attribute__((unused, noinline))
#else
#define BYOC_FUNCTION static inline
#endif

/* Leaves the calling function when a call fails. */
#define BYOC_TRY(call)                      \
  do {                                      \
    const int status_ = (call);             \
    if (status_ != BYOC_OK) return status_; \
  } while (0)

/* Whose memory a buffer is. */
typedef enum {
  BYOC_ARENA,    /* the call's, at an offset; several take turns */
  BYOC_INPUT,    /* the caller's, read in place */
  BYOC_OUTPUT,   /* the caller's, written in place */
  BYOC_CONSTANT, /* the caller's, from creation on */
  BYOC_PACKED,   /* computed from constants at creation */
  BYOC_TEMPORARY /* the same, not needed after it */
} byoc_home;

typedef struct {
  byoc_home home;
  size_t index; /* which input, output or constant; the offset in the arena */
  size_t bytes;
  int alias; /* 1 + the output that is written over this input; 0 for none */
} byoc_buffer;

/* One argument of a step: a part of a buffer. */
typedef struct {
  int buffer; /* -1: memory of the call's own */
  size_t offset, bytes;
  int written;
} byoc_arg;

struct byoc_step;

/* A step is a primitive of a library or a kernel of ours (byoc_kernel.h), and nothing else. */
typedef struct {
  /* What each call's context needs of its own; data[i]: where argument i lies, NULL while that is
     the caller's to say. Either may be NULL. */
  int (*open)(const struct byoc_step* step, void* const* data, void** own, char* error);
  void (*close)(void* own);
  int (*run)(const struct byoc_step* step, void* own, void* const* data, char* error);
  void (*destroy)(void* state);
} byoc_step_type;

typedef struct byoc_step {
  const char* name;
  const byoc_step_type* type;
  void* state;             /* of the type, released by its `destroy` */
  int first_arg, num_args; /* in the plan's list */
} byoc_step;

/* The memory of one call. */
typedef struct byoc_context {
  struct byoc_context* next;
  void** data;  /* by argument of the plan */
  void** own;   /* by step, of its type */
  void* blocks; /* the arena, memory of a step's own */
} byoc_context;

/* The functions of a table that shares packed constants between plans; NULLs if there is none. */
typedef struct {
  void* self;
  /* Memory for a packed buffer; `ready` if it holds its contents already. NULL: there is none. */
  char* (*take)(void* self, int buffer, size_t bytes, int* ready);
  /* No step will touch this packed or constant buffer again. */
  void (*drop)(void* self, int buffer);
} byoc_owner;

typedef struct {
  const byoc_buffer* buffers;
  int num_buffers, num_init, num_steps, num_args, max_args;
  size_t arena_bytes;
  const void* const* constants;
  byoc_owner owner;
  byoc_step* init;      /* run once: they pack the constants */
  byoc_step* steps;     /* run per call */
  byoc_arg* args;       /* of all steps */
  char** packed;        /* by buffer */
  size_t* capacity;     /* of those: packed constants may be larger than planned */
  pthread_mutex_t lock; /* of the three below */
  byoc_context* idle;
  int num_idle, running;
  char error[BYOC_ERROR_BYTES]; /* of the creation */
} byoc_plan;

BYOC_FUNCTION int byoc_no_memory(char* error, size_t bytes) {
  snprintf(error, BYOC_ERROR_BYTES, "out of memory: %lu bytes", (unsigned long)bytes);
  return BYOC_NO_MEMORY;
}

/* Memory at a multiple of `alignment`; NULL when there is none. For byoc_free. With nothing but
   `malloc`, since a strict C99 hides what POSIX has. */
BYOC_FUNCTION char* byoc_allocate_at(size_t alignment, size_t bytes) {
  char* block = (char*)malloc(bytes + sizeof(void*) + alignment);
  char* data;
  if (block == NULL) return NULL;
  data = block + sizeof(void*) + alignment - 1;
  data -= (uintptr_t)data % alignment;
  memcpy(data - sizeof(void*), &block, sizeof(void*));
  return data;
}

/* Memory that each call reads, as weights: on huge pages when that is worth it. Else as
   byoc_allocate_at. */
BYOC_FUNCTION char* byoc_allocate(size_t bytes) {
  const size_t pages = bytes >= 2 * (size_t)BYOC_HUGE_PAGE ? bytes / BYOC_HUGE_PAGE : 0;
  char* data = byoc_allocate_at(pages != 0 ? BYOC_HUGE_PAGE : BYOC_ALIGNMENT, bytes);
#ifdef MADV_HUGEPAGE
  if (data != NULL && pages != 0) { /* advice only: failure is harmless */
    const size_t huge = pages * BYOC_HUGE_PAGE;
    const size_t rest = (bytes - huge) / BYOC_PAGE * BYOC_PAGE;
    madvise(data, huge, MADV_HUGEPAGE);
    /* The rest would need a huge page of its own for a few bytes. */
    if (rest != 0) madvise(data + huge, rest, MADV_NOHUGEPAGE);
  }
#endif
  return data;
}

BYOC_FUNCTION void byoc_free(void* data) {
  void* block = NULL;
  if (data != NULL) memcpy(&block, (char*)data - sizeof(void*), sizeof(void*));
  free(block);
}

/* Memory of the calls themselves, released with the list. On small pages: calls are as fast as on
   huge ones, and the first one does not wait for a host that gives huge pages slowly. */
BYOC_FUNCTION char* byoc_allocate_in(void** list, size_t bytes) {
  void** node = (void**)malloc(2 * sizeof(void*));
  char* data = byoc_allocate_at(bytes < BYOC_PAGE ? BYOC_ALIGNMENT : BYOC_PAGE, bytes);
  if (node == NULL || data == NULL) {
    free(node);
    byoc_free(data);
    return NULL;
  }
  node[0] = *list;
  node[1] = data;
  *list = node;
  return data;
}

BYOC_FUNCTION void byoc_release(void** list) {
  while (*list != NULL) {
    void** node = (void**)*list;
    *list = node[0];
    byoc_free(node[1]);
    free(node);
  }
}

BYOC_FUNCTION int byoc_setup(byoc_plan* p, const byoc_buffer* buffers, int num_buffers,
                             int num_init, int num_steps, size_t arena_bytes,
                             const void* const* constants) {
  memset(p, 0, sizeof(*p));
  pthread_mutex_init(&p->lock, NULL);
  p->buffers = buffers;
  p->num_buffers = num_buffers;
  p->constants = constants;
  p->arena_bytes = arena_bytes;
  p->init = (byoc_step*)calloc((size_t)num_init + 1, sizeof(*p->init));
  p->steps = (byoc_step*)calloc((size_t)num_steps + 1, sizeof(*p->steps));
  p->packed = (char**)calloc((size_t)num_buffers + 1, sizeof(*p->packed));
  p->capacity = (size_t*)calloc((size_t)num_buffers + 1, sizeof(*p->capacity));
  if (p->init == NULL || p->steps == NULL || p->packed == NULL || p->capacity == NULL) {
    return byoc_no_memory(p->error, (size_t)num_steps * sizeof(*p->steps));
  }
  p->num_init = num_init;
  p->num_steps = num_steps;
  return BYOC_OK;
}

BYOC_FUNCTION int byoc_is_packed(const byoc_plan* p, int buffer) {
  return buffer >= 0 &&
         (p->buffers[buffer].home == BYOC_PACKED || p->buffers[buffer].home == BYOC_TEMPORARY);
}

/* Adds an argument: a part of a buffer; with the gaps, to its end. */
BYOC_FUNCTION int byoc_bind(byoc_plan* p, byoc_step* step, int buffer, size_t offset, size_t bytes,
                            int written) {
  byoc_arg* added;
  if (byoc_is_packed(p, buffer)) {
    if (p->capacity[buffer] < p->buffers[buffer].bytes) {
      p->capacity[buffer] = p->buffers[buffer].bytes;
    }
    if (p->capacity[buffer] < offset + bytes) p->capacity[buffer] = offset + bytes;
  } else if (buffer >= 0 && bytes > p->buffers[buffer].bytes) {
    snprintf(p->error, sizeof(p->error), "%s: argument %d has %lu bytes, its buffer %lu",
             step->name, step->num_args, (unsigned long)bytes,
             (unsigned long)p->buffers[buffer].bytes);
    return BYOC_FAILED;
  }
  if (p->num_args == p->max_args) {
    const int wanted = 2 * p->max_args + 64;
    byoc_arg* grown = (byoc_arg*)realloc(p->args, (size_t)wanted * sizeof(*grown));
    if (grown == NULL) return byoc_no_memory(p->error, (size_t)wanted * sizeof(*grown));
    p->args = grown;
    p->max_args = wanted;
  }
  if (step->num_args == 0) step->first_arg = p->num_args;
  added = &p->args[step->first_arg + step->num_args++];
  ++p->num_args;
  added->buffer = buffer;
  added->offset = offset;
  added->bytes = bytes;
  added->written = written;
  return BYOC_OK;
}

#endif /* BYOC_PLAN_H_ */
