/* SPDX-License-Identifier: Apache-2.0
   Recurrent networks of one layer: RNN, LSTM and GRU as ONNX defines them, of one or two
   directions and any length.

   For a chunk of steps, the source of all of them is multiplied by its weights, which is one large
   product. Each step then adds the product of the states and their weights, and computes the gates
   of a block of units while these are in the first-level cache. The weights lie in panels
   (byoc_recurrent_pack.h), in which the gates of a block stand side by side. Threads divide the
   rows or the columns of the large product; then the sequences, or the units of each step.

   States and sums are float32; weights may be bfloat16 or bytes with scales, which are converted in
   registers.

   Each number is summed up in the same order, whatever the chunks and the threads.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_RECURRENT_H_
#define BYOC_RECURRENT_H_

#include "byoc_recurrent_plan.h"
#include "byoc_share.h"

/* One call: its data, and its memory. */
typedef struct byoc_recurrent_call {
  const byoc_recurrent_params* p;
  byoc_recurrent_packed at;
  byoc_recurrent_room room;
  const float *source, *packed, *state, *cell;
  const int32_t* lengths;
  float *result, *scratch;
  int64_t first_state; /* the row of the result that is the state of the first step */
  int64_t steps;       /* of the longest sequence */
} byoc_recurrent_call;

static inline int64_t byoc_recurrent_length(const byoc_recurrent_call* c, int64_t row) {
  return c->lengths == NULL ? c->p->steps : c->lengths[row];
}

/* The state of a sequence before a step. */
static inline float* byoc_recurrent_state(const byoc_recurrent_call* c, int64_t d, int64_t row,
                                          int64_t step) {
  const int64_t sequences = c->p->shape.directions * c->p->batch;
  return c->scratch + c->room.states +
         (step % 2 * sequences + d * c->p->batch + row) * c->room.state_row;
}

#define BYOC_BODY "byoc_recurrent_body.h"
#include "byoc_each_isa.h"

/* The data of a call; the lengths are checked. */
static inline byoc_recurrent_call byoc_recurrent_open(const byoc_recurrent_params* p,
                                                      void* const* data, void* scratch) {
  byoc_recurrent_call c;
  int next = 2;
  c.p = p;
  c.at = byoc_recurrent_layout(&p->shape);
  c.room = byoc_recurrent_divide(p);
  c.source = (const float*)data[0];
  c.packed = (const float*)data[1];
  c.state = p->has_state ? (const float*)data[next++] : NULL;
  c.cell = p->has_cell ? (const float*)data[next++] : NULL;
  c.lengths = p->has_lengths ? (const int32_t*)data[next++] : NULL;
  c.result = (float*)data[next];
  c.scratch = (float*)scratch;
  c.first_state = p->wants_state + p->wants_cell;
  c.steps = c.lengths == NULL ? p->steps : 0;
  for (int64_t row = 0; c.lengths != NULL && row < p->batch; ++row) {
    c.steps = byoc_max(c.steps, c.lengths[row]);
  }
  return c;
}

BYOC_FUNCTION int byoc_recurrent_on_thread(const int64_t* params, void* const* data, void* scratch,
                                           int64_t part, int64_t parts) {
  const byoc_recurrent_params* p = (const byoc_recurrent_params*)params;
  const byoc_recurrent_call c = byoc_recurrent_open(p, data, scratch);
  BYOC_FOR_ISA(p->shape.isa, recurrent_part, (&c, part, parts));
  return BYOC_OK;
}

/* The kernel. data: the source, the packed weights; the states, the cells and the lengths (int32)
   to begin with, those that there are; the result. */
BYOC_FUNCTION int byoc_recurrent(const int64_t* params, void* const* data, void* scratch,
                                 int threads, char* error) {
  const byoc_recurrent_params* p = (const byoc_recurrent_params*)params;
  const int32_t* lengths =
      p->has_lengths ? (const int32_t*)data[2 + p->has_state + p->has_cell] : NULL;
  for (int64_t row = 0; lengths != NULL && row < p->batch; ++row) {
    if (lengths[row] < 0 || lengths[row] > p->steps) {
      snprintf(error, BYOC_ERROR_BYTES, "sequence %lld has the length %d, expected 0 to %lld",
               (long long)row, (int)lengths[row], (long long)p->steps);
      return BYOC_BAD_INDEX;
    }
  }
  const int alone =
      p->steps * byoc_recurrent_step_work(p) * p->shape.directions < BYOC_RECURRENT_SMALL;
  return byoc_on_team(byoc_recurrent_on_thread, params, data, scratch,
                      alone ? 1 : byoc_min(threads, p->threads));
}

#endif /* BYOC_RECURRENT_H_ */
