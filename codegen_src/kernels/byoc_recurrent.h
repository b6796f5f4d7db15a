/* SPDX-License-Identifier: Apache-2.0
   Recurrent networks of one layer: RNN, LSTM and GRU as ONNX defines them, of one or two
   directions and any length.

   For a chunk of steps, the source of all of them is multiplied by its weights, which is one large
   product. Each step then adds the product of the states and their weights, and computes the gates
   of a block of units while these are in the first-level cache. The weights lie in panels
   (byoc_recurrent_plan.h), in which the gates of a block stand side by side. Threads divide the
   rows or the columns of the large product; then the sequences, or the units of each step.

   States and sums are float32; weights may be bfloat16 or bytes with scales, which are converted in
   registers.

   Each number is summed up in the same order, whatever the chunks and the threads. */
#ifndef BYOC_RECURRENT_H_
#define BYOC_RECURRENT_H_

#include "byoc_recurrent_plan.h"

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

#define BYOC_BODY "byoc_recurrent.h"
#include "byoc_each_isa.h"

BYOC_PARTS_FOR_ISA(recurrent, byoc_recurrent_params, p->shape.isa)

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
  return byoc_on_team(byoc_recurrent_on_thread, params, data, scratch,
                      byoc_min(threads, p->threads));
}

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

#include "byoc_recurrent_step_body.h"

/* Where the sums of a step begin, and those of a block in them. */
BYOC_INLINE float* BYOC_NAME(sums_of)(const byoc_recurrent_call* c, int64_t d, int64_t step,
                                      int64_t row, int64_t block) {
  const byoc_recurrent_params* p = c->p;
  const int64_t rows = c->room.chunk * p->batch;
  return c->scratch + c->room.sums +
         (d * rows + step % c->room.chunk * p->batch + row) * c->room.sums_row +
         block * byoc_gates(p->shape.cell) * BYOC_PANEL;
}

/* What follows the products of a step, for some sequences and a block of their units: the next
   state; or, for BYOC_GRU with `resets`, what is multiplied by the weights of the last gate. */
BYOC_INLINE void BYOC_NAME(recurrent_finish_rows)(const byoc_recurrent_call* c, int64_t cell,
                                                  BYOC_NAME(kinds) k, int resets, int64_t d,
                                                  int64_t step, int64_t block, int64_t first,
                                                  int64_t last) {
  const byoc_recurrent_params* p = c->p;
  const int64_t begin = block * BYOC_PANEL;
  const float* packed = c->packed + d * c->at.floats;
  for (int64_t row = first; row < last; ++row) {
    const float* before = byoc_recurrent_state(c, d, row, step) + begin;
    float* after = byoc_recurrent_state(c, d, row, step + 1) + begin;
    const int64_t length = byoc_recurrent_length(c, row);
    const int64_t time = p->reverse[d] ? length - 1 - step : step;
    if (step >= length) { /* this sequence has ended */
      memcpy(after, before, BYOC_PANEL * 4);
      continue;
    }
    for (int64_t v = 0; v < BYOC_PANEL; v += BYOC_LANES) {
      const int64_t place = (d * p->batch + row) * c->room.state_row + begin + v;
      BYOC_NAME(units) u;
      u.sums = BYOC_NAME(sums_of)(c, d, step, row, block) + v;
      u.resets = c->scratch + c->room.resets + place;
      u.gap = byoc_recurrent_units(&p->shape);
      u.peepholes = p->shape.has_peepholes ? packed + c->at.peepholes + begin + v : NULL;
      u.before = before + v;
      u.cell = c->scratch + c->room.cells + place;
      if (resets) {
        const BYOC_VEC reset =
            BYOC_NAME(activate)(p, k.f, &p->curves[d][0], BYOC_NAME(load)(u.sums + BYOC_PANEL));
        BYOC_NAME(store)(u.resets, reset * BYOC_NAME(load)(u.before));
        continue;
      }
      const BYOC_VEC state = BYOC_NAME(next_state)(p, cell, p->curves[d], k, &u);
      BYOC_NAME(store)(after + v, state);
      const int64_t present = p->shape.hidden - begin - v;
      if (p->wants_all && present > 0) {
        float* to = c->result + (c->first_state + time) * p->dst_row + d * p->dst_direction +
                    row * p->dst_sequence + begin + v;
        BYOC_NAME(store_some)(to, state, (int)byoc_min(present, BYOC_LANES));
      }
    }
  }
}

/* The same, by code of its own for each cell with the usual activations. */
BYOC_NO_INLINE void BYOC_NAME(finish)(const byoc_recurrent_call* c, int resets, int64_t d,
                                      int64_t step, int64_t block, int64_t first, int64_t last) {
  const int64_t cell = c->p->shape.cell;
  const byoc_recurrent_curve* curves = c->p->curves[d];
  const BYOC_NAME(kinds) usual = {BYOC_SIGMOID, BYOC_TANH, BYOC_TANH};
  const BYOC_NAME(kinds) given = {curves[0].kind, curves[1].kind, curves[2].kind};
  const int is_usual = given.f == BYOC_SIGMOID && given.g == BYOC_TANH;
  if (cell == BYOC_LSTM && is_usual && given.h == BYOC_TANH) {
    BYOC_NAME(recurrent_finish_rows)(c, BYOC_LSTM, usual, 0, d, step, block, first, last);
  } else if (cell == BYOC_LBR_GRU && is_usual) {
    BYOC_NAME(recurrent_finish_rows)(c, BYOC_LBR_GRU, usual, 0, d, step, block, first, last);
  } else if (cell == BYOC_GRU && is_usual) {
    BYOC_NAME(recurrent_finish_rows)(c, BYOC_GRU, usual, resets, d, step, block, first, last);
  } else {
    BYOC_NAME(recurrent_finish_rows)(c, cell, given, resets, d, step, block, first, last);
  }
}

/* A step of the units of one block of a direction, for some sequences. BYOC_GRU takes two passes,
   at whose end all units must be there: the states multiply the gates z and r in pass 0, the reset
   states the last one in pass 1. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_block)(const byoc_recurrent_call* c, int64_t d,
                                               int64_t step, int64_t block, int pass, int64_t begin,
                                               int64_t end) {
  const byoc_recurrent_params* p = c->p;
  const int64_t cell = p->shape.cell, hidden = p->shape.hidden, gates = byoc_gates(cell);
  const int64_t panel = byoc_recurrent_panel(&p->shape, hidden);
  const float* packed = c->packed + d * c->at.floats;
  const float* weights = packed + c->at.state + block * gates * panel;
  const float* scales = packed + c->at.state_scales + block * gates * BYOC_PANEL;
  for (int64_t first = begin; first < end; first += BYOC_RECURRENT_BATCH) {
    const int64_t rows = byoc_min(BYOC_RECURRENT_BATCH, end - first);
    const int64_t place = (d * p->batch + first) * c->room.state_row;
    float* sums = BYOC_NAME(sums_of)(c, d, step, first, block);
    float* resets = c->scratch + c->room.resets + place;
    byoc_matrices m = byoc_plain_product(byoc_recurrent_state(c, d, first, step), c->room.state_row,
                                         weights, panel, hidden, sums, c->room.sums_row);
    if (pass == 0) {
      m.start = sums;
      m.start_row = m.c_row;
      BYOC_NAME(recurrent_product)(p->shape.bits, rows, gates == 3 ? 2 : gates, &m, scales);
    }
    if (pass == 1 || cell == BYOC_LBR_GRU) {
      m.b = weights + 2 * panel;
      m.c = m.c + 2 * BYOC_PANEL;
      if (pass == 1) {
        m.a = resets;
        m.start = m.c;
        m.start_row = m.c_row;
      } else {
        m.start = packed + c->at.state_bias + block * BYOC_PANEL;
        m.start_row = 0;
        m.c = resets + block * BYOC_PANEL;
        m.c_row = c->room.state_row;
      }
      BYOC_NAME(recurrent_product)(p->shape.bits, rows, 1, &m, scales + 2 * BYOC_PANEL);
    }
    BYOC_NAME(finish)(c, cell == BYOC_GRU && pass == 0, d, step, block, first, first + rows);
  }
}

/* Some blocks of the units of all directions, for some sequences. Each step goes the other way than
   the one before: it begins with the weights that are still in a cache. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_blocks)(const byoc_recurrent_call* c, int64_t step,
                                                int pass, int64_t begin, int64_t end,
                                                int64_t first_row, int64_t last_row) {
  const int64_t blocks = byoc_recurrent_blocks(&c->p->shape);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = step % 2 == 0 ? i : begin + end - 1 - i;
    BYOC_NAME(recurrent_block)(c, at / blocks, step, at % blocks, pass, first_row, last_row);
  }
}

/* Sets up what a call begins with: the states before it, and the results behind the ends. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_begin)(const byoc_recurrent_call* c, int64_t d,
                                               int64_t row) {
  const byoc_recurrent_params* p = c->p;
  const int64_t hidden = p->shape.hidden, sequence = d * p->batch + row;
  const size_t bytes = (size_t)c->room.state_row * 4;
  float* cell = c->scratch + c->room.cells + sequence * c->room.state_row;
  float* state = byoc_recurrent_state(c, d, row, 0);
  memset(state, 0, bytes);
  if (c->state != NULL) memcpy(state, c->state + sequence * hidden, (size_t)hidden * 4);
  if (p->shape.cell == BYOC_LSTM) {
    memset(cell, 0, bytes);
    if (c->cell != NULL) memcpy(cell, c->cell + sequence * hidden, (size_t)hidden * 4);
  }
  for (int64_t t = byoc_recurrent_length(c, row); t < p->steps && p->wants_all; ++t) {
    memset(c->result + (c->first_state + t) * p->dst_row + d * p->dst_direction +
               row * p->dst_sequence,
           0, (size_t)hidden * 4);
  }
}

BYOC_NO_INLINE void BYOC_NAME(recurrent_end)(const byoc_recurrent_call* c, int64_t d, int64_t row) {
  const byoc_recurrent_params* p = c->p;
  const size_t bytes = (size_t)p->shape.hidden * 4;
  float* to = c->result + d * p->dst_direction + row * p->dst_sequence;
  if (byoc_recurrent_length(c, row) == 0) { /* without a step there is no last state */
    for (int64_t i = 0; i < c->first_state; ++i) memset(to + i * p->dst_row, 0, bytes);
    return;
  }
  if (p->wants_state) memcpy(to, byoc_recurrent_state(c, d, row, c->steps), bytes);
  if (p->wants_cell) {
    memcpy(to + p->wants_state * p->dst_row,
           c->scratch + c->room.cells + (d * p->batch + row) * c->room.state_row, bytes);
  }
}

/* The products of the source with its weights, for some rows (a sequence of a step each, from
   `step` on) and the panels of a thread. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_source)(const byoc_recurrent_call* c, int64_t d,
                                                int64_t step, const byoc_share* share, float* own) {
  const byoc_recurrent_params* p = c->p;
  const int64_t input = p->shape.input, row_floats = c->room.source_row;
  const int64_t panel = byoc_recurrent_panel(&p->shape, input);
  const float* packed = c->packed + d * c->at.floats;
  const int64_t at_once = byoc_min(BYOC_RECURRENT_ROWS, c->room.chunk * p->batch);
  for (int64_t first = share->first_row; first < share->last_row; first += at_once) {
    const int64_t rows = byoc_min(at_once, share->last_row - first);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t s = step + (first + i) / p->batch, row = (first + i) % p->batch;
      const int64_t length = byoc_recurrent_length(c, row);
      const int64_t time = p->reverse[d] ? length - 1 - s : s;
      float* to = own + i * row_floats;
      if (s < length) {
        memcpy(to, c->source + time * p->src_step + row * p->src_row, (size_t)input * 4);
      } else {
        memset(to, 0, (size_t)input * 4);
      }
    }
    byoc_matrices m = byoc_plain_product(
        own, row_floats, packed + c->at.source + share->first_panel * panel, panel, input,
        BYOC_NAME(sums_of)(c, d, step, first, 0) + share->first_panel * BYOC_PANEL,
        c->room.sums_row);
    m.start = packed + c->at.bias + share->first_panel * BYOC_PANEL;
    BYOC_NAME(recurrent_product)
    (p->shape.bits, rows, share->last_panel - share->first_panel, &m,
     packed + c->at.scales + share->first_panel * BYOC_PANEL);
  }
}

/* Some steps of the sequences of a thread, whatever their direction. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_own)(const byoc_recurrent_call* c, int64_t first,
                                             int64_t last, int64_t thread, int64_t team) {
  const byoc_recurrent_params* p = c->p;
  const int64_t blocks = byoc_recurrent_blocks(&p->shape), all = p->shape.directions * p->batch;
  const int64_t begin = all * thread / team, end = all * (thread + 1) / team;
  const int passes = p->shape.cell == BYOC_GRU ? 2 : 1;
  for (int64_t d = 0; d < p->shape.directions; ++d) {
    const int64_t first_row = byoc_max(begin - d * p->batch, 0);
    const int64_t last_row = byoc_min(end - d * p->batch, p->batch);
    for (int64_t step = first; step < last && first_row < last_row; ++step) {
      for (int pass = 0; pass < passes; ++pass) {
        BYOC_NAME(recurrent_blocks)
        (c, step, pass, d * blocks, (d + 1) * blocks, first_row, last_row);
      }
    }
  }
}

/* Some steps of the units of a thread, of all sequences: the threads wait for each other. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_together)(const byoc_recurrent_call* c, int64_t first,
                                                  int64_t last, int64_t thread, int64_t team) {
  const byoc_recurrent_params* p = c->p;
  const int64_t blocks = p->shape.directions * byoc_recurrent_blocks(&p->shape);
  const int passes = p->shape.cell == BYOC_GRU ? 2 : 1;
  for (int64_t step = first; step < last; ++step) {
    for (int pass = 0; pass < passes; ++pass) {
      BYOC_NAME(recurrent_blocks)
      (c, step, pass, blocks * thread / team, blocks * (thread + 1) / team, 0, p->batch);
      byoc_wait_for_team(team);
    }
  }
}

/* The work of one thread of a team. */
BYOC_NO_INLINE void BYOC_NAME(recurrent_part)(const byoc_recurrent_params* p, void* const* data,
                                              void* scratch, int64_t thread, int64_t team) {
  const byoc_recurrent_call call = byoc_recurrent_open(p, data, scratch), *c = &call;
  const int64_t directions = p->shape.directions, chunk = c->room.chunk;
  const int64_t columns = byoc_recurrent_columns(&p->shape);
  const int together = byoc_recurrent_divides_units(p, team);
  float* own = c->scratch + c->room.sources + thread * c->room.source_floats;
  for (int64_t i = thread; i < directions * p->batch; i += team) {
    BYOC_NAME(recurrent_begin)(c, i / p->batch, i % p->batch);
  }
  for (int64_t first = 0; first < c->steps; first += chunk) {
    const int64_t last = byoc_min(first + chunk, c->steps);
    const byoc_share share =
        byoc_divide((last - first) * p->batch, BYOC_PAIR_ROWS, columns, BYOC_PANEL, thread, team);
    for (int64_t d = 0; d < directions; ++d) {
      BYOC_NAME(recurrent_source)(c, d, first, &share, own);
    }
    byoc_wait_for_team(team);
    if (together) {
      BYOC_NAME(recurrent_together)(c, first, last, thread, team);
    } else {
      BYOC_NAME(recurrent_own)(c, first, last, thread, team);
      byoc_wait_for_team(team);
    }
  }
  for (int64_t i = thread; i < directions * p->batch; i += team) {
    BYOC_NAME(recurrent_end)(c, i / p->batch, i % p->batch);
  }
}

#endif /* BYOC_RECURRENT_H_ */
