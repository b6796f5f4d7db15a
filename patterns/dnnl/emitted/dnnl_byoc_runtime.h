/* SPDX-License-Identifier: Apache-2.0 */
/* What all emitted source shares, second half: contexts, calls, and the end of a region. */
#ifndef DNNL_BYOC_RUNTIME_H_
#define DNNL_BYOC_RUNTIME_H_

#include "dnnl_byoc_plan.h"

DNNL_BYOC_FUNCTION void dnnl_byoc_close(dnnl_byoc_context* c) {
  int i;
  for (i = 0; i < c->num_args; ++i) {
    if (c->args[i].memory != NULL) dnnl_memory_destroy(c->args[i].memory);
  }
  if (c->stream != NULL) dnnl_stream_destroy(c->stream);
  dnnl_byoc_release(&c->blocks);
  free(c->args);
  free(c);
}

/* Memory objects for some steps; those of the caller's tensors get their data later. */
DNNL_BYOC_FUNCTION int dnnl_byoc_prepare(const dnnl_byoc_region* r, dnnl_byoc_context* c,
                                         const dnnl_byoc_step* steps, int num_steps, char* error) {
  char* arena = dnnl_byoc_allocate(&c->blocks, r->arena_bytes, error);
  int i, k;
  if (arena == NULL) return 1;
  DNNL_BYOC_CHECK(error, (const dnnl_byoc_step*)NULL,
                  dnnl_stream_create(&c->stream, r->engine, dnnl_stream_default_flags));
  for (i = 0; i < num_steps; ++i) {
    for (k = steps[i].first_arg; k < steps[i].first_arg + steps[i].num_args; ++k) {
      const dnnl_byoc_arg* a = &r->args[k];
      const dnnl_byoc_buffer* b = a->buffer < 0 ? NULL : &r->buffers[a->buffer];
      char* base = NULL;
      if (b == NULL) {
        base = dnnl_byoc_allocate(&c->blocks, dnnl_memory_desc_get_size(a->md), error);
        if (base == NULL) return 1;
      } else if (b->home == DNNL_BYOC_ARENA) {
        base = arena + b->index;
      } else if (b->home == DNNL_BYOC_CONSTANT) {
        base = (char*)(uintptr_t)r->constants[b->index];
      } else if (b->home != DNNL_BYOC_INPUT && b->home != DNNL_BYOC_OUTPUT) {
        base = r->packed[a->buffer];
      }
      c->args[k].arg = a->arg;
      DNNL_BYOC_CHECK(error, &steps[i],
                      dnnl_memory_create(&c->args[k].memory, a->md, r->engine,
                                         base == NULL ? NULL : base + a->offset));
    }
  }
  return 0;
}

/* NULL after a message. */
DNNL_BYOC_FUNCTION dnnl_byoc_context* dnnl_byoc_open(const dnnl_byoc_region* r,
                                                     const dnnl_byoc_step* steps, int num_steps,
                                                     char* error) {
  dnnl_byoc_context* c = (dnnl_byoc_context*)calloc(1, sizeof(*c));
  if (c != NULL) c->args = (dnnl_exec_arg_t*)calloc((size_t)r->num_args + 1, sizeof(*c->args));
  if (c == NULL || c->args == NULL) {
    snprintf(error, DNNL_BYOC_ERROR_BYTES, "out of memory");
    free(c);
    return NULL;
  }
  c->num_args = r->num_args;
  if (dnnl_byoc_prepare(r, c, steps, num_steps, error) == 0) return c;
  dnnl_byoc_close(c);
  return NULL;
}

DNNL_BYOC_FUNCTION int dnnl_byoc_execute(const dnnl_byoc_context* c, const dnnl_byoc_step* step,
                                         char* error) {
  const dnnl_exec_arg_t* args = c->args + step->first_arg;
  void* data = NULL;
  size_t i;
  if (step->fill_bytes == 0) {
    DNNL_BYOC_CHECK(error, step,
                    dnnl_primitive_execute(step->primitive, c->stream, step->num_args, args));
    return 0;
  }
  DNNL_BYOC_CHECK(error, step, dnnl_memory_get_data_handle(args[0].memory, &data));
  for (i = 1; i < step->fill_bytes && step->fill[i] == step->fill[0];) ++i;
  if (i == step->fill_bytes) {
    memset(data, step->fill[0], step->bytes);
    return 0;
  }
  for (i = 0; i + step->fill_bytes <= step->bytes; i += step->fill_bytes) {
    memcpy((char*)data + i, step->fill, step->fill_bytes);
  }
  return 0;
}

DNNL_BYOC_FUNCTION void dnnl_byoc_destroy_steps(dnnl_byoc_step** list, int* count) {
  dnnl_byoc_step* steps = *list;
  int i;
  for (i = 0; i < *count; ++i) {
    if (steps[i].primitive != NULL) dnnl_primitive_destroy(steps[i].primitive);
    if (steps[i].pd != NULL) dnnl_primitive_desc_destroy(steps[i].pd);
    if (steps[i].post_ops != NULL) dnnl_post_ops_destroy(steps[i].post_ops);
    if (steps[i].attr != NULL) dnnl_primitive_attr_destroy(steps[i].attr);
  }
  free(steps);
  *list = NULL;
  *count = 0;
}

DNNL_BYOC_FUNCTION int dnnl_byoc_execute_all(const dnnl_byoc_context* c,
                                             const dnnl_byoc_step* steps, int num_steps,
                                             char* error) {
  int i;
  for (i = 0; i < num_steps; ++i) DNNL_BYOC_TRY(dnnl_byoc_execute(c, &steps[i], error));
  DNNL_BYOC_CHECK(error, (const dnnl_byoc_step*)NULL, dnnl_stream_wait(c->stream));
  return 0;
}

/* Runs what needs to run once: packs the constants. Makes the first call's context, so that want of
   memory shows here. */
DNNL_BYOC_FUNCTION int dnnl_byoc_initialise(dnnl_byoc_region* r) {
  dnnl_byoc_context* c = dnnl_byoc_open(r, r->init, r->num_init, r->error);
  int failed;
  if (c == NULL) return 1;
  failed = dnnl_byoc_execute_all(c, r->init, r->num_init, r->error);
  dnnl_byoc_close(c);
  if (failed) return 1;
  dnnl_byoc_destroy_steps(&r->init, &r->num_init);
  dnnl_byoc_release(&r->temporary);
  r->idle = dnnl_byoc_open(r, r->steps, r->num_steps, r->error);
  return r->idle == NULL;
}

/* One call, of as many threads as want to. Returns 0, or 1 with a message in `error`, which has
   room for DNNL_BYOC_ERROR_BYTES. */
DNNL_BYOC_FUNCTION int dnnl_byoc_run(dnnl_byoc_region* r, const void* const* inputs,
                                     void* const* outputs, char* error) {
  dnnl_byoc_context* c;
  int k, failed = 1;
  for (k = 0; k < r->num_buffers; ++k) {
    const dnnl_byoc_buffer* b = &r->buffers[k];
    if (b->alias == 0 || inputs[b->index] == outputs[b->alias - 1]) continue;
    snprintf(error, DNNL_BYOC_ERROR_BYTES, "input %d and output %d must be the same memory",
             (int)b->index, b->alias - 1);
    return 1;
  }
  pthread_mutex_lock(&r->lock);
  c = r->idle;
  if (c != NULL) r->idle = c->next;
  ++r->running;
  pthread_mutex_unlock(&r->lock);
  if (c == NULL) c = dnnl_byoc_open(r, r->steps, r->num_steps, error);
  if (c != NULL) {
    for (k = 0; k < r->num_args; ++k) {
      const dnnl_byoc_arg* a = &r->args[k];
      const dnnl_byoc_buffer* b = a->buffer < 0 ? NULL : &r->buffers[a->buffer];
      char* base;
      if (b == NULL || (b->home != DNNL_BYOC_INPUT && b->home != DNNL_BYOC_OUTPUT)) continue;
      base = b->home == DNNL_BYOC_INPUT ? (char*)(uintptr_t)inputs[b->index]
                                        : (char*)outputs[b->index];
      dnnl_memory_set_data_handle(c->args[k].memory, base + a->offset);
    }
    failed = dnnl_byoc_execute_all(c, r->steps, r->num_steps, error);
  }
  pthread_mutex_lock(&r->lock);
  --r->running;
  if (c != NULL) {
    c->next = r->idle;
    r->idle = c;
  }
  pthread_mutex_unlock(&r->lock);
  return failed;
}

/* Whether a call reads this constant in place; the others are not needed after the creation. */
DNNL_BYOC_FUNCTION int dnnl_byoc_reads_constant(const dnnl_byoc_region* r, size_t constant) {
  int i, k;
  for (i = 0; i < r->num_steps; ++i) {
    for (k = r->steps[i].first_arg; k < r->steps[i].first_arg + r->steps[i].num_args; ++k) {
      const dnnl_byoc_buffer* b = r->args[k].buffer < 0 ? NULL : &r->buffers[r->args[k].buffer];
      if (b != NULL && b->home == DNNL_BYOC_CONSTANT && b->index == constant) return 1;
    }
  }
  return 0;
}

/* When no call is running any more. */
DNNL_BYOC_FUNCTION void dnnl_byoc_destroy(dnnl_byoc_region* r) {
  int i;
  while (r->idle != NULL) {
    dnnl_byoc_context* c = r->idle;
    r->idle = c->next;
    dnnl_byoc_close(c);
  }
  dnnl_byoc_destroy_steps(&r->init, &r->num_init);
  dnnl_byoc_destroy_steps(&r->steps, &r->num_steps);
  for (i = 0; i < r->num_layouts; ++i) {
    if (r->md[i] != NULL) dnnl_memory_desc_destroy(r->md[i]);
  }
  free(r->args);
  free(r->md);
  free(r->packed);
  free(r->capacity);
  dnnl_byoc_release(&r->blocks);
  dnnl_byoc_release(&r->temporary);
  if (r->engine != NULL) dnnl_engine_destroy(r->engine);
  pthread_mutex_destroy(&r->lock);
  memset(r, 0, sizeof(*r));
}

#endif /* DNNL_BYOC_RUNTIME_H_ */
