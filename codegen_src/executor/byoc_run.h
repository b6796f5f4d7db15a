/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that can be run, second half: packing constants, contexts, calls, and the end. */
#ifndef BYOC_RUN_H_
#define BYOC_RUN_H_

#include "byoc_plan.h"

/* The address of an argument; NULL for an argument that the caller gives with each call. */
BYOC_FUNCTION char* byoc_place(const byoc_plan* p, const byoc_arg* a, char* arena) {
  const byoc_buffer* b = &p->buffers[a->buffer];
  switch (b->home) {
    case BYOC_ARENA:
      return arena + b->index + a->offset;
    case BYOC_CONSTANT:
      return (char*)(uintptr_t)p->constants[b->index] + a->offset;
    case BYOC_PACKED:
    case BYOC_TEMPORARY:
      return p->packed[a->buffer] + a->offset;
    default:
      return NULL;
  }
}

BYOC_FUNCTION int byoc_open_step(const byoc_step* step, void* const* data, void** own,
                                 char* error) {
  *own = NULL;
  return step->type->open == NULL ? BYOC_OK : step->type->open(step, data, own, error);
}

BYOC_FUNCTION void byoc_close_step(const byoc_step* step, void* own) {
  if (own != NULL && step->type->close != NULL) step->type->close(own);
}

BYOC_FUNCTION void byoc_close(const byoc_plan* p, byoc_context* c) {
  int i;
  for (i = 0; c->own != NULL && i < p->num_steps; ++i) byoc_close_step(&p->steps[i], c->own[i]);
  byoc_release(&c->blocks);
  free(c->data);
  free(c->own);
  free(c);
}

BYOC_FUNCTION int byoc_prepare(const byoc_plan* p, byoc_context* c, char* error) {
  char* arena = byoc_allocate_in(&c->blocks, p->arena_bytes);
  int i, k;
  if (arena == NULL) return byoc_no_memory(error, p->arena_bytes);
  for (i = 0; i < p->num_steps; ++i) {
    const byoc_step* step = &p->steps[i];
    for (k = step->first_arg; k < step->first_arg + step->num_args; ++k) {
      const byoc_arg* a = &p->args[k];
      if (a->buffer >= 0) {
        c->data[k] = byoc_place(p, a, arena);
      } else {
        c->data[k] = byoc_allocate_in(&c->blocks, a->bytes);
        if (c->data[k] == NULL) return byoc_no_memory(error, a->bytes);
      }
    }
    BYOC_TRY(byoc_open_step(step, c->data + step->first_arg, &c->own[i], error));
  }
  return BYOC_OK;
}

BYOC_FUNCTION int byoc_open(const byoc_plan* p, byoc_context** opened, char* error) {
  byoc_context* c = (byoc_context*)calloc(1, sizeof(*c));
  int status = BYOC_NO_MEMORY;
  *opened = NULL;
  if (c == NULL) return byoc_no_memory(error, sizeof(*c));
  c->data = (void**)calloc((size_t)p->num_args + 1, sizeof(*c->data));
  c->own = (void**)calloc((size_t)p->num_steps + 1, sizeof(*c->own));
  if (c->data == NULL || c->own == NULL) {
    byoc_no_memory(error, (size_t)p->num_args * sizeof(*c->data));
  } else {
    status = byoc_prepare(p, c, error);
  }
  if (status == BYOC_OK) {
    *opened = c;
  } else {
    byoc_close(p, c);
  }
  return status;
}

BYOC_FUNCTION void byoc_destroy_steps(byoc_step** list, int* count) {
  byoc_step* steps = *list;
  int i;
  for (i = 0; i < *count; ++i) {
    if (steps[i].type != NULL && steps[i].type->destroy != NULL && steps[i].state != NULL) {
      steps[i].type->destroy(steps[i].state);
    }
  }
  free(steps);
  *list = NULL;
  *count = 0;
}

/* Whether one of these steps touches the buffer. */
BYOC_FUNCTION int byoc_touches(const byoc_plan* p, const byoc_step* steps, int count, int buffer) {
  int i, k;
  for (i = 0; i < count; ++i) {
    for (k = steps[i].first_arg; k < steps[i].first_arg + steps[i].num_args; ++k) {
      if (p->args[k].buffer == buffer) return 1;
    }
  }
  return 0;
}

enum { BYOC_UNUSED, BYOC_MISSING, BYOC_READY }; /* a packed buffer */

/* Memory for a packed buffer that is needed, from the table that shares it. */
BYOC_FUNCTION int byoc_take(byoc_plan* p, int buffer, char* state) {
  int ready = 0;
  if (!byoc_is_packed(p, buffer) || state[buffer] != BYOC_UNUSED) return BYOC_OK;
  p->packed[buffer] = p->owner.take == NULL
                          ? byoc_allocate(p->capacity[buffer])
                          : p->owner.take(p->owner.self, buffer, p->capacity[buffer], &ready);
  if (p->packed[buffer] == NULL) return byoc_no_memory(p->error, p->capacity[buffer]);
  state[buffer] = (char)(ready ? BYOC_READY : BYOC_MISSING);
  return BYOC_OK;
}

BYOC_FUNCTION void byoc_drop(byoc_plan* p, int buffer) {
  if (p->owner.drop != NULL) {
    p->owner.drop(p->owner.self, buffer);
  } else if (byoc_is_packed(p, buffer)) {
    byoc_free(p->packed[buffer]);
  }
  p->packed[buffer] = NULL;
}

/* Chooses the packed buffers that calls read and that are not there yet, and the steps of
   initialisation that make them. */
BYOC_FUNCTION int byoc_choose_init(byoc_plan* p, char* state, char* chosen) {
  int i, k;
  for (i = 0; i < p->num_steps; ++i) {
    for (k = p->steps[i].first_arg; k < p->steps[i].first_arg + p->steps[i].num_args; ++k) {
      BYOC_TRY(byoc_take(p, p->args[k].buffer, state));
    }
  }
  for (i = p->num_init; i-- > 0;) {
    const byoc_step* step = &p->init[i];
    for (k = step->first_arg; k < step->first_arg + step->num_args; ++k) {
      const byoc_arg* a = &p->args[k];
      if (a->written && a->buffer >= 0 && state[a->buffer] == BYOC_MISSING) chosen[i] = 1;
    }
    if (!chosen[i]) continue;
    for (k = step->first_arg; k < step->first_arg + step->num_args; ++k) {
      BYOC_TRY(byoc_take(p, p->args[k].buffer, state));
    }
  }
  return BYOC_OK;
}

BYOC_FUNCTION int byoc_run_init_step(byoc_plan* p, const byoc_step* step) {
  void** data = (void**)calloc((size_t)step->num_args + 1, sizeof(*data));
  void* blocks = NULL;
  void* own = NULL;
  int k, status = data == NULL ? byoc_no_memory(p->error, sizeof(*data)) : BYOC_OK;
  for (k = 0; status == BYOC_OK && k < step->num_args; ++k) {
    const byoc_arg* a = &p->args[step->first_arg + k];
    data[k] = a->buffer >= 0 ? byoc_place(p, a, NULL) : byoc_allocate_in(&blocks, a->bytes);
    if (data[k] == NULL) status = byoc_no_memory(p->error, a->bytes);
  }
  if (status == BYOC_OK) status = byoc_open_step(step, data, &own, p->error);
  if (status == BYOC_OK) status = step->type->run(step, own, data, p->error);
  byoc_close_step(step, own);
  byoc_release(&blocks);
  free(data);
  return status;
}

BYOC_FUNCTION int byoc_pack(byoc_plan* p, char* state, char* chosen) {
  int i, k;
  BYOC_TRY(byoc_choose_init(p, state, chosen));
  for (i = 0; i < p->num_init; ++i) {
    const byoc_step* step = &p->init[i];
    if (!chosen[i]) continue;
    BYOC_TRY(byoc_run_init_step(p, step));
    /* At once, because the unpacked and the packed constants together are the peak. */
    for (k = step->first_arg; k < step->first_arg + step->num_args; ++k) {
      const int buffer = p->args[k].buffer;
      int later = i + 1, needed = buffer < 0;
      for (; !needed && later < p->num_init; ++later) {
        needed = chosen[later] && byoc_touches(p, &p->init[later], 1, buffer);
      }
      if (needed || byoc_touches(p, p->steps, p->num_steps, buffer)) continue;
      byoc_drop(p, buffer);
    }
  }
  return BYOC_OK;
}

/* Runs the initialisation. Makes the first call's context, so that missing memory is found here.
 */
BYOC_FUNCTION int byoc_initialise(byoc_plan* p) {
  char* state = (char*)calloc((size_t)p->num_buffers + 1, 1);
  char* chosen = (char*)calloc((size_t)p->num_init + 1, 1);
  int status = BYOC_NO_MEMORY;
  if (state == NULL || chosen == NULL) {
    byoc_no_memory(p->error, (size_t)p->num_buffers);
  } else {
    status = byoc_pack(p, state, chosen);
  }
  free(state);
  free(chosen);
  if (status != BYOC_OK) return status;
  byoc_destroy_steps(&p->init, &p->num_init);
  p->num_idle = 1;
  return byoc_open(p, &p->idle, p->error);
}

/* One call; any number of threads may call. `error` has room for BYOC_ERROR_BYTES. With a clock,
   the seconds that each step took; both may be NULL. */
BYOC_FUNCTION int byoc_run_timed(byoc_plan* p, const void* const* inputs, void* const* outputs,
                                 double (*clock)(void), double* seconds, char* error) {
  byoc_context* c;
  int i, k, status = BYOC_OK;
  for (k = 0; k < p->num_buffers; ++k) {
    const byoc_buffer* b = &p->buffers[k];
    if (b->alias == 0 || inputs[b->index] == outputs[b->alias - 1]) continue;
    snprintf(error, BYOC_ERROR_BYTES, "input %d and output %d must be the same memory",
             (int)b->index, b->alias - 1);
    return BYOC_FAILED;
  }
  pthread_mutex_lock(&p->lock);
  c = p->idle;
  if (c != NULL) {
    p->idle = c->next;
    --p->num_idle;
  }
  ++p->running;
  pthread_mutex_unlock(&p->lock);
  if (c == NULL) status = byoc_open(p, &c, error);
  for (k = 0; c != NULL && k < p->num_args; ++k) {
    const byoc_arg* a = &p->args[k];
    const byoc_home home = a->buffer < 0 ? BYOC_ARENA : p->buffers[a->buffer].home;
    if (home != BYOC_INPUT && home != BYOC_OUTPUT) continue;
    c->data[k] = (home == BYOC_INPUT ? (char*)(uintptr_t)inputs[p->buffers[a->buffer].index]
                                     : (char*)outputs[p->buffers[a->buffer].index]) +
                 a->offset;
  }
  for (i = 0; status == BYOC_OK && i < p->num_steps; ++i) {
    const byoc_step* step = &p->steps[i];
    const double start = clock == NULL ? 0 : clock();
    status = step->type->run(step, c->own[i], c->data + step->first_arg, error);
    if (clock != NULL) seconds[i] = clock() - start;
  }
  pthread_mutex_lock(&p->lock);
  --p->running;
  if (c != NULL && p->num_idle < BYOC_MAX_IDLE) {
    c->next = p->idle;
    p->idle = c;
    ++p->num_idle;
    c = NULL;
  }
  pthread_mutex_unlock(&p->lock);
  if (c != NULL) byoc_close(p, c);
  return status;
}

BYOC_FUNCTION int byoc_run(byoc_plan* p, const void* const* inputs, void* const* outputs,
                           char* error) {
  return byoc_run_timed(p, inputs, outputs, NULL, NULL, error);
}

/* Whether a call reads this constant in place; the others are not needed after the creation. */
BYOC_FUNCTION int byoc_reads_constant(const byoc_plan* p, size_t constant) {
  int i;
  for (i = 0; i < p->num_buffers; ++i) {
    if (p->buffers[i].home == BYOC_CONSTANT && p->buffers[i].index == constant &&
        byoc_touches(p, p->steps, p->num_steps, i)) {
      return 1;
    }
  }
  return 0;
}

/* To be called when no call is running any more. */
BYOC_FUNCTION void byoc_destroy(byoc_plan* p) {
  int i;
  while (p->idle != NULL) {
    byoc_context* c = p->idle;
    p->idle = c->next;
    byoc_close(p, c);
  }
  byoc_destroy_steps(&p->init, &p->num_init);
  byoc_destroy_steps(&p->steps, &p->num_steps);
  for (i = 0; p->packed != NULL && p->owner.take == NULL && i < p->num_buffers; ++i) {
    byoc_free(p->packed[i]);
  }
  free(p->args);
  free(p->packed);
  free(p->capacity);
  pthread_mutex_destroy(&p->lock);
  memset(p, 0, sizeof(*p));
}

#endif /* BYOC_RUN_H_ */
