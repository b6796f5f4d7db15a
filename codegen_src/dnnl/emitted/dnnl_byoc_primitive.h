/* SPDX-License-Identifier: Apache-2.0 */
/* A primitive of oneDNN as a step of a plan. Needs oneDNN's C API; C99, and C++ as well. */
#ifndef DNNL_BYOC_PRIMITIVE_H_
#define DNNL_BYOC_PRIMITIVE_H_

#include "byoc_kernel.h"
#include "dnnl.h"

/* A primitive whose data has no more bytes takes less time than it takes to wake threads. */
#define DNNL_BYOC_ALONE 16384

/* One argument of the primitive, in a layout, which the plan or the primitive descriptor owns. */
typedef struct {
  int arg; /* DNNL_ARG_* */
  const_dnnl_memory_desc_t md;
} dnnl_byoc_arg;

typedef struct {
  byoc_step* step;
  dnnl_engine_t engine;
  dnnl_primitive_attr_t attr;
  dnnl_post_ops_t post_ops;
  dnnl_primitive_desc_t pd;
  const_dnnl_primitive_desc_t from; /* `pd`, or one of another owner */
  dnnl_primitive_t primitive;       /* NULL: each context makes its own, for what runs once */
  dnnl_byoc_arg* args;
  int num_args;
  size_t bytes; /* of all arguments */
} dnnl_byoc_step;

/* The memory objects of one call. */
typedef struct {
  dnnl_stream_t stream;
  dnnl_primitive_t primitive; /* if the step has none */
  int num_args;
  dnnl_exec_arg_t* args;
  void** data; /* where the memory objects point to */
} dnnl_byoc_own;

/* Leaves the calling function when a call of oneDNN fails. */
#define DNNL_BYOC_CHECK(error, name, call)                                             \
  do {                                                                                 \
    const dnnl_status_t status_ = (call);                                              \
    if (status_ != dnnl_success) return dnnl_byoc_failed(error, name, #call, status_); \
  } while (0)

BYOC_FUNCTION int dnnl_byoc_failed(char* error, const char* name, const char* call,
                                   dnnl_status_t status) {
  snprintf(error, BYOC_ERROR_BYTES,
           "%s: oneDNN returned status %d from %.200s. Is this the CPU and the oneDNN that the "
           "program was emitted for?",
           name, (int)status, call);
  return status == dnnl_out_of_memory ? BYOC_NO_MEMORY : BYOC_FAILED;
}

BYOC_FUNCTION void dnnl_byoc_close(void* opened) {
  dnnl_byoc_own* own = (dnnl_byoc_own*)opened;
  int k;
  for (k = 0; k < own->num_args; ++k) {
    if (own->args[k].memory != NULL) dnnl_memory_destroy(own->args[k].memory);
  }
  if (own->stream != NULL) dnnl_stream_destroy(own->stream);
  if (own->primitive != NULL) dnnl_primitive_destroy(own->primitive);
  free(own->args);
  free(own->data);
  free(own);
}

BYOC_FUNCTION int dnnl_byoc_open(const byoc_step* step, void* const* data, void** opened,
                                 char* error) {
  const dnnl_byoc_step* s = (const dnnl_byoc_step*)step->state;
  dnnl_byoc_own* own = (dnnl_byoc_own*)calloc(1, sizeof(*own));
  int k;
  *opened = own;
  if (own == NULL) return byoc_no_memory(error, sizeof(*own));
  own->args = (dnnl_exec_arg_t*)calloc((size_t)s->num_args + 1, sizeof(*own->args));
  own->data = (void**)calloc((size_t)s->num_args + 1, sizeof(*own->data));
  if (own->args == NULL || own->data == NULL) return byoc_no_memory(error, sizeof(*own));
  own->num_args = s->num_args;
  DNNL_BYOC_CHECK(error, step->name,
                  dnnl_stream_create(&own->stream, s->engine, dnnl_stream_default_flags));
  if (s->primitive == NULL) {
    DNNL_BYOC_CHECK(error, step->name, dnnl_primitive_create(&own->primitive, s->from));
  }
  for (k = 0; k < s->num_args; ++k) {
    own->args[k].arg = s->args[k].arg;
    own->data[k] = data[k];
    DNNL_BYOC_CHECK(error, step->name,
                    dnnl_memory_create(&own->args[k].memory, s->args[k].md, s->engine, data[k]));
  }
  return BYOC_OK;
}

/* Executes a primitive, a small one by this thread alone. That changes nothing for the kinds that
   have divided their work for a number of threads when they were created. */
BYOC_FUNCTION dnnl_status_t dnnl_byoc_call(const dnnl_byoc_step* s, const dnnl_byoc_own* own) {
  const dnnl_primitive_t primitive = s->primitive != NULL ? s->primitive : own->primitive;
  const int alone = s->bytes <= DNNL_BYOC_ALONE;
  const int threads = alone ? byoc_set_threads(1) : 0;
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive, own->stream, own->num_args, own->args);
  if (alone) byoc_set_threads(threads);
  return status;
}

BYOC_FUNCTION int dnnl_byoc_execute(const byoc_step* step, void* opened, void* const* data,
                                    char* error) {
  const dnnl_byoc_step* s = (const dnnl_byoc_step*)step->state;
  dnnl_byoc_own* own = (dnnl_byoc_own*)opened;
  int k;
  for (k = 0; k < own->num_args; ++k) { /* the caller's */
    if (own->data[k] == data[k]) continue;
    own->data[k] = data[k];
    DNNL_BYOC_CHECK(error, step->name, dnnl_memory_set_data_handle(own->args[k].memory, data[k]));
  }
  DNNL_BYOC_CHECK(error, step->name, dnnl_byoc_call(s, own));
  DNNL_BYOC_CHECK(error, step->name, dnnl_stream_wait(own->stream));
  return BYOC_OK;
}

BYOC_FUNCTION void dnnl_byoc_destroy_step(void* state) {
  dnnl_byoc_step* s = (dnnl_byoc_step*)state;
  if (s->primitive != NULL) dnnl_primitive_destroy(s->primitive);
  if (s->pd != NULL) dnnl_primitive_desc_destroy(s->pd);
  if (s->post_ops != NULL) dnnl_post_ops_destroy(s->post_ops);
  if (s->attr != NULL) dnnl_primitive_attr_destroy(s->attr);
  free(s->args);
  free(s);
}

/* Makes a step one of oneDNN's; NULL when there is no memory. */
BYOC_FUNCTION dnnl_byoc_step* dnnl_byoc_begin(dnnl_engine_t engine, byoc_step* step,
                                              const char* name) {
  static const byoc_step_type kType = {dnnl_byoc_open, dnnl_byoc_close, dnnl_byoc_execute,
                                       dnnl_byoc_destroy_step};
  dnnl_byoc_step* s = (dnnl_byoc_step*)calloc(1, sizeof(*s));
  step->name = name;
  step->type = &kType;
  step->state = s;
  if (s == NULL) return NULL;
  s->step = step;
  s->engine = engine;
  return s;
}

/* Adds an argument: a part of a buffer (-1: memory of the call's own), in a layout. */
BYOC_FUNCTION int dnnl_byoc_add_arg(byoc_plan* p, dnnl_byoc_step* s, int arg, int buffer,
                                    size_t offset, const_dnnl_memory_desc_t md) {
  const size_t bytes = dnnl_memory_desc_get_size(md);
  dnnl_byoc_arg* grown =
      (dnnl_byoc_arg*)realloc(s->args, (size_t)(s->num_args + 1) * sizeof(*grown));
  if (grown == NULL) return byoc_no_memory(p->error, sizeof(*grown));
  s->args = grown;
  s->args[s->num_args].arg = arg;
  s->args[s->num_args++].md = md;
  s->bytes += bytes;
  return byoc_bind(p, s->step, buffer, offset, bytes, arg == DNNL_ARG_DST);
}

/* Makes the primitive for all calls, once its arguments are there. */
BYOC_FUNCTION int dnnl_byoc_create(byoc_plan* p, dnnl_byoc_step* s) {
  DNNL_BYOC_CHECK(p->error, s->step->name, dnnl_primitive_create(&s->primitive, s->from));
  return BYOC_OK;
}

/* Whether the elements lie in the same places: the strides of axes of size 1 do not matter. */
BYOC_FUNCTION int dnnl_byoc_same_layout(const_dnnl_memory_desc_t a, const_dnnl_memory_desc_t b) {
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

#endif /* DNNL_BYOC_PRIMITIVE_H_ */
