/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_recurrent.h, its packed weights, and the memory that it takes. */
#ifndef BYOC_RECURRENT_PLAN_H_
#define BYOC_RECURRENT_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"

/* Gates in the order of ONNX: one; i, o, f, c; z, r, h. With BYOC_LBR_GRU the reset gate multiplies
   the product with the recurrent weights, else the state before it. */
typedef enum byoc_cell { BYOC_RNN, BYOC_LSTM, BYOC_GRU, BYOC_LBR_GRU } byoc_cell;

typedef enum byoc_activation {
  BYOC_SIGMOID,
  BYOC_TANH,
  BYOC_ACT_RELU,
  BYOC_AFFINE,           /* alpha x + beta */
  BYOC_LEAKY_RELU,       /* x < 0 ? alpha x : x */
  BYOC_THRESHOLDED_RELU, /* x > alpha ? x : 0 */
  BYOC_SCALED_TANH,      /* alpha tanh(beta x) */
  BYOC_HARD_SIGMOID,     /* alpha x + beta, limited to [0, 1] */
  BYOC_ELU,              /* x < 0 ? alpha (exp(x) - 1) : x */
  BYOC_SOFTSIGN,         /* x / (1 + |x|) */
  BYOC_SOFTPLUS          /* log(1 + exp(x)) */
} byoc_activation;

/* What says where the weights lie, packed. */
typedef struct __attribute__((may_alias)) byoc_recurrent_shape {
  int64_t isa;  /* byoc_isa */
  int64_t cell; /* byoc_cell */
  int64_t directions, input, hidden;
  int64_t has_bias, has_peepholes;
  int64_t bits; /* of a weight: 32; 16, bfloat16; or 8, whole numbers with a scale for each unit */
} byoc_recurrent_shape;

typedef struct byoc_recurrent_curve {
  int64_t kind; /* byoc_activation */
  double alpha, beta;
} byoc_recurrent_curve;

enum { BYOC_CURVES = 3, BYOC_DIRECTIONS = 2 };

/* The result has rows: the last states, the last cells, and the states of all steps, those of them
   that are wanted. The source and the rows of the result lie as the strides say, in floats. */
typedef struct __attribute__((may_alias)) byoc_recurrent_params {
  byoc_recurrent_shape shape;
  int64_t steps, batch;
  int64_t has_state, has_cell, has_lengths;   /* inputs that there are */
  int64_t wants_state, wants_cell, wants_all; /* rows of the result that there are */
  int64_t reverse[BYOC_DIRECTIONS];           /* whether a direction begins at the end */
  byoc_recurrent_curve curves[BYOC_DIRECTIONS][BYOC_CURVES]; /* f, g, h of ONNX */
  double clip;                                  /* of the sums of the gates; infinity: none */
  int64_t coupled;                              /* LSTM: the forget gate is 1 - the input gate */
  int64_t src_step, src_row;                    /* of the source: steps, sequences */
  int64_t dst_row, dst_direction, dst_sequence; /* of the result */
  int64_t threads;                              /* that there is scratch memory for */
  int64_t waits; /* whether a step of one direction is worth waiting for other threads */
} byoc_recurrent_params;

enum {
  BYOC_RECURRENT_ROWS = 144, /* of the source that are multiplied at once, about */
  BYOC_RECURRENT_BATCH = 48, /* sequences of a step that are multiplied at once */
  BYOC_RECURRENT_OWN = 4     /* sequences whose products take longer than their weights to arrive */
};

static inline int64_t byoc_gates(int64_t cell) {
  return cell == BYOC_RNN ? 1 : cell == BYOC_LSTM ? 4 : 3;
}

/* Units are computed in blocks of a panel for each gate, one gate behind the other. */
static inline int64_t byoc_recurrent_blocks(const byoc_recurrent_shape* s) {
  return (s->hidden + byoc_panel(s->isa) - 1) / byoc_panel(s->isa);
}
static inline int64_t byoc_recurrent_units(const byoc_recurrent_shape* s) {
  return byoc_recurrent_blocks(s) * byoc_panel(s->isa);
}
static inline int64_t byoc_recurrent_columns(const byoc_recurrent_shape* s) {
  return byoc_recurrent_units(s) * byoc_gates(s->cell);
}

/* The room of a panel of weights, in floats. Of each `depth` stand a panel's weights side by side;
   those of bfloat16 in pairs, an even depth in the lower half and the next one in the upper half.
   Below 32 bits the depth is filled up to an even one. */
static inline int64_t byoc_recurrent_panel(const byoc_recurrent_shape* s, int64_t depth) {
  const int64_t panel = byoc_panel(s->isa);
  return s->bits == 32 ? depth * panel : (depth + 1) / 2 * panel * s->bits / 16;
}

/* The packed weights of a direction, in floats from its begin on: of the source and of the states
   in panels; the bias of all columns; that of the state alone in the last gate of BYOC_LBR_GRU;
   the peepholes i, o, f; the scales of all columns for the source and for the states. */
typedef struct byoc_recurrent_packed {
  int64_t source, state, bias, state_bias, peepholes, scales, state_scales, floats;
} byoc_recurrent_packed;

static inline byoc_recurrent_packed byoc_recurrent_layout(const byoc_recurrent_shape* s) {
  const int64_t columns = byoc_recurrent_columns(s), units = byoc_recurrent_units(s);
  const int64_t panels = columns / byoc_panel(s->isa);
  byoc_recurrent_packed at;
  at.source = 0;
  at.state = panels * byoc_recurrent_panel(s, s->input);
  at.bias = at.state + panels * byoc_recurrent_panel(s, s->hidden);
  at.state_bias = at.bias + columns;
  at.peepholes = at.state_bias + units;
  at.scales = at.peepholes + 3 * units;
  at.state_scales = at.scales + (s->bits == 8 ? columns : 0);
  at.floats = at.state_scales + (s->bits == 8 ? columns : 0);
  return at;
}

static inline size_t byoc_recurrent_packed_bytes(const byoc_recurrent_shape* s) {
  return (size_t)(s->directions * byoc_recurrent_layout(s).floats) * 4;
}

/* Scratch memory, in floats: two states of all sequences, which take turns; the cells; for GRUs
   what is multiplied by, or is the product with, the weights of the last gate; the sums of all
   gates of a chunk of steps; and of each thread the rows of the source that it multiplies. No two
   rows lie on the same lines of the cache. */
typedef struct byoc_recurrent_room {
  int64_t state_row, sums_row, source_row; /* floats from a row to the next */
  int64_t chunk;                           /* steps */
  int64_t states, cells, resets, sums, sources, source_floats, floats;
} byoc_recurrent_room;

static inline byoc_recurrent_room byoc_recurrent_divide(const byoc_recurrent_params* p) {
  const byoc_recurrent_shape* s = &p->shape;
  const int64_t sequences = s->directions * p->batch;
  byoc_recurrent_room room;
  room.state_row = byoc_recurrent_units(s) + BYOC_CACHE_LINE_FLOATS;
  room.sums_row = byoc_recurrent_columns(s) + BYOC_CACHE_LINE_FLOATS;
  room.source_row = byoc_round_up(s->input, BYOC_CACHE_LINE_FLOATS) + BYOC_CACHE_LINE_FLOATS;
  room.chunk = byoc_min(byoc_max(BYOC_RECURRENT_ROWS / byoc_max(p->batch, 1), 1), p->steps);
  room.states = 0;
  room.cells = room.states + 2 * sequences * room.state_row;
  room.resets = room.cells + (s->cell == BYOC_LSTM ? sequences * room.state_row : 0);
  room.sums = room.resets + (byoc_gates(s->cell) == 3 ? sequences * room.state_row : 0);
  room.sources = room.sums + sequences * room.chunk * room.sums_row;
  room.source_floats = byoc_min(room.chunk * p->batch, BYOC_RECURRENT_ROWS) * room.source_row;
  room.floats = room.sources + p->threads * room.source_floats;
  return room;
}

/* Multiplications of a step of one direction with the states. */
static inline int64_t byoc_recurrent_step_work(const byoc_recurrent_params* p) {
  return p->batch * byoc_recurrent_columns(&p->shape) * p->shape.hidden;
}

/* Whether the threads of a team divide the units of each step, for which they wait for each other.
   Else they divide the sequences, and each reads the weights of all units: there are directions for
   all of them, or so many sequences that this takes no longer, or the steps are small. */
static inline int byoc_recurrent_divides_units(const byoc_recurrent_params* p, int64_t team) {
  const int64_t directions = p->shape.directions;
  return team > 1 && directions % team != 0 && directions * p->batch < BYOC_RECURRENT_OWN * team &&
         p->waits;
}

static inline size_t byoc_recurrent_scratch_bytes(const byoc_recurrent_params* p) {
  return (size_t)byoc_recurrent_divide(p).floats * 4;
}

/* A panel of the units of a gate, whose weights of 16 or 8 bits have a row of `depth` for each. */
BYOC_FUNCTION void byoc_recurrent_pack_narrow(int64_t bits, const char* weights, int64_t units,
                                              int64_t depth, int64_t panel, char* to) {
  memset(to, 0, (size_t)((depth + 1) / 2 * panel * bits / 4));
  for (int64_t u = 0; u < units; ++u) {
    const char* row = weights + u * depth * bits / 8;
    for (int64_t k = 0; k < depth; ++k) {
      if (bits == 8) {
        to[k * panel + u] = row[k];
      } else {
        memcpy(to + (k / 2 * panel + u) * 4 + k % 2 * 2, row + k * 2, 2);
      }
    }
  }
}

/* The panel `place` of a direction, whose weights begin at a row of all of them. */
BYOC_FUNCTION void byoc_recurrent_pack_at(const byoc_recurrent_shape* s, const void* weights,
                                          int64_t row, int64_t units, int64_t depth, int64_t place,
                                          float* to) {
  const int64_t panel = byoc_panel(s->isa);
  const char* from = (const char*)weights + row * depth * s->bits / 8;
  to += place * byoc_recurrent_panel(s, depth);
  if (s->bits == 32) {
    byoc_pack_panel((const float*)from, 1, depth, depth, units, panel, to);
  } else {
    byoc_recurrent_pack_narrow(s->bits, from, units, depth, panel, (char*)to);
  }
}

/* Some panels of all of them. */
BYOC_FUNCTION void byoc_recurrent_pack_part(const byoc_recurrent_shape* s, void* const* data,
                                            int64_t part, int64_t parts) {
  const byoc_recurrent_packed at = byoc_recurrent_layout(s);
  const int64_t panel = byoc_panel(s->isa), blocks = byoc_recurrent_blocks(s);
  const int64_t gates = byoc_gates(s->cell), units = byoc_recurrent_units(s), hidden = s->hidden;
  const int64_t items = s->directions * blocks * gates;
  const float* bias = s->has_bias ? (const float*)data[2] : NULL;
  const float* peepholes = s->has_peepholes ? (const float*)data[2 + s->has_bias] : NULL;
  const int narrowest = s->bits == 8;
  const float* scales = narrowest ? (const float*)data[2 + s->has_bias + s->has_peepholes] : NULL;
  float* packed = (float*)data[2 + s->has_bias + s->has_peepholes + narrowest];
  for (int64_t item = items * part / parts; item < items * (part + 1) / parts; ++item) {
    const int64_t gate = item % gates, block = item / gates % blocks, d = item / gates / blocks;
    const int64_t first = block * panel, count = byoc_min(panel, hidden - first);
    const int64_t row = (d * gates + gate) * hidden + first, place = block * gates + gate;
    float* to = packed + d * at.floats;
    byoc_recurrent_pack_at(s, data[0], row, count, s->input, place, to + at.source);
    byoc_recurrent_pack_at(s, data[1], row, count, hidden, place, to + at.state);
    for (int64_t u = 0; u < panel; ++u) {
      /* of the source; that of the states stands behind those of all gates */
      const int64_t at_bias = (2 * d * gates + gate) * hidden + first + u;
      if (scales != NULL) {
        to[at.scales + place * panel + u] = u < count ? scales[at_bias] : 0;
        to[at.state_scales + place * panel + u] = u < count ? scales[at_bias + gates * hidden] : 0;
      }
      const int given = bias != NULL && u < count;
      const float of_source = given ? bias[at_bias] : 0;
      const float of_state = given ? bias[at_bias + gates * hidden] : 0;
      const int apart = s->cell == BYOC_LBR_GRU && gate == 2;
      to[at.bias + place * panel + u] = of_source + (apart ? 0 : of_state);
      if (apart) to[at.state_bias + first + u] = of_state;
    }
    for (int64_t k = gate; k < 3 && peepholes != NULL; k += gates) {
      for (int64_t u = 0; u < panel; ++u) {
        to[at.peepholes + k * units + first + u] =
            u < count ? peepholes[(3 * d + k) * hidden + first + u] : 0;
      }
    }
  }
}

/* params: byoc_recurrent_shape. data, as ONNX has them: weights of the source [directions, gates *
   hidden, input] and of the states, of `bits` bits; biases of both [directions, 2 * gates * hidden]
   and peepholes [directions, 3 * hidden] if there are such; scales as biases for 8 bits; and what
   is made of them. */
BYOC_KERNEL(recurrent_pack, byoc_recurrent_shape, threads)

#endif /* BYOC_RECURRENT_PLAN_H_ */
