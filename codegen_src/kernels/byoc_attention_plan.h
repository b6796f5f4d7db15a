/* SPDX-License-Identifier: Apache-2.0
   The parameters of byoc_attention.h, how its rows are divided, the memory that it takes, and the
   keys that a query sees. */
#ifndef BYOC_ATTENTION_PLAN_H_
#define BYOC_ATTENTION_PLAN_H_

#include "byoc_isa.h"
#include "byoc_kernel.h"
#include "byoc_post_ops.h"

/* Numbers between the batches, heads and rows of an operand, whose last axis is dense; 0 where it
   has only one, which serves all. */
typedef struct byoc_attention_strides {
  int64_t batch, head, row;
} byoc_attention_strides;

/* Keys or values: float32, or narrower numbers, which are exact as float32. In pages, `batch` lies
   between these. */
typedef struct byoc_attention_source {
  int64_t dtype; /* byoc_dtype */
  byoc_attention_strides strides;
  int64_t width;
} byoc_attention_source;

/* How scores become shares. */
typedef struct byoc_attention_rule {
  double scale;   /* of the scores, before the bias is added */
  double softcap; /* scores become softcap * tanh(score / softcap); 0: they stay */
  int64_t has_bias;
  int64_t has_sinks; /* each head has a score that takes a share and gives nothing */
  int64_t no_nan;    /* a row without a share for any key is 0, else NaN */
  int64_t has_sums;  /* the logarithm, of base 2, of the sum of exp(score) is a result as well */
} byoc_attention_rule;

/* The keys that a query sees, of all or of as many as there are. */
typedef struct byoc_attention_reach {
  int64_t has_length; /* the number of keys is an input */
  int64_t has_starts; /* query i of a batch is at start + i, and sees the keys up to there */
  int64_t window;     /* of them only the last so many; 0: all */
  int64_t
      page_rows; /* keys and values lie in pages of so many rows; 0: those of a batch together */
} byoc_attention_reach;

typedef struct __attribute__((may_alias)) byoc_attention_params {
  int64_t isa; /* byoc_isa */
  int64_t batch;
  int64_t heads, key_heads; /* of queries; of keys and values, each for heads / key_heads of them */
  int64_t queries, keys;    /* rows; with `has_length` the most keys that there may be */
  byoc_attention_source key, value; /* queries are as wide as keys, results as values */
  byoc_attention_strides query, bias, dst;
  byoc_attention_rule rule;
  byoc_attention_reach reach;
  int64_t threads; /* that there is scratch memory for */
} byoc_attention_params;

enum {
  BYOC_ATTENTION_KEYS = 512, /* of a block, at most */
  BYOC_ATTENTION_ROWS = 24,  /* of a block: multiples of 6 and, nearly, of 14 */
  BYOC_ATTENTION_FEW = 8     /* rows that read keys and values where they lie */
};

/* Whether blocks of keys or values are not read where they lie. */
static inline int byoc_attention_is_copied(const byoc_attention_params* p) {
  return p->key.dtype != BYOC_F32 || p->value.dtype != BYOC_F32 || p->reach.page_rows != 0;
}

/* All rows of queries that share keys and values. */
static inline int64_t byoc_attention_rows(const byoc_attention_params* p) {
  return p->heads / p->key_heads * p->queries;
}

/* The rows that share keys and values are cut into so many parts, so that all threads have work. */
static inline int64_t byoc_attention_parts(const byoc_attention_params* p) {
  const int64_t units = p->batch * p->key_heads, rows = byoc_attention_rows(p);
  const int64_t blocks = (rows + BYOC_ATTENTION_ROWS - 1) / BYOC_ATTENTION_ROWS;
  int64_t parts = 1;
  while (units * parts % p->threads != 0 && units * parts < 4 * p->threads && parts < blocks)
    ++parts;
  return parts;
}

/* Scratch memory of a thread, in floats: a block of keys or values that are copied, packed keys and
   values of a block, queries and scores of a block of rows, and of all rows of a part the largest
   score, the sum and the result so far. */
typedef struct byoc_attention_room {
  int64_t keys, values, queries, scores, largest, sums, results, floats;
  int64_t score_row, query_row, result_row;
} byoc_attention_room;

static inline byoc_attention_room byoc_attention_divide(const byoc_attention_params* p) {
  const int64_t panel = byoc_panel(p->isa), parts = byoc_attention_parts(p);
  const int64_t keys = byoc_round_up(byoc_min(p->keys, BYOC_ATTENTION_KEYS), panel);
  const int64_t blocks = (byoc_attention_rows(p) + BYOC_ATTENTION_ROWS - 1) / BYOC_ATTENTION_ROWS;
  const int64_t rows = (blocks + parts - 1) / parts * BYOC_ATTENTION_ROWS;
  byoc_attention_room room;
  const int64_t widest = byoc_round_up(byoc_max(p->key.width, p->value.width), 16);
  room.query_row = byoc_round_up(p->key.width, 16) + 16; /* not on the same lines of the cache */
  room.score_row = keys + 16;
  room.result_row = byoc_round_up(p->value.width, panel);
  room.keys = byoc_attention_is_copied(p) ? 2 * keys * widest : 0;
  room.values = room.keys + keys * byoc_round_up(p->key.width, 16);
  room.queries = room.values + keys * room.result_row;
  room.scores = room.queries + BYOC_ATTENTION_ROWS * room.query_row;
  room.largest = room.scores + BYOC_ATTENTION_ROWS * room.score_row;
  room.sums = room.largest + byoc_round_up(rows, 16);
  room.results = room.sums + byoc_round_up(rows, 16);
  room.floats = room.results + rows * room.result_row;
  return room;
}

static inline size_t byoc_attention_scratch_bytes(const byoc_attention_params* p) {
  return (size_t)(p->threads * byoc_attention_divide(p).floats) * 4;
}

/* Keys and values of a block, as floats. */
typedef struct byoc_attention_block {
  const float *key, *value;
  int64_t key_row, value_row;
} byoc_attention_block;

/* The keys of a batch that its queries see: all `keys`, or those up to the query's own position, of
   which the first query has `start`. */
typedef struct byoc_attention_sight {
  int64_t keys, start, window;
  int is_causal;
} byoc_attention_sight;

static inline byoc_attention_sight byoc_attention_sight_of(const byoc_attention_params* p,
                                                           int64_t keys, int64_t batch,
                                                           void* const* data) {
  byoc_attention_sight s = {keys, 0, p->reach.window, p->reach.has_starts != 0};
  if (s.is_causal) {
    memcpy(&s.start, (const char*)data[3 + p->rule.has_bias + p->reach.has_length] + batch * 8, 8);
  }
  return s;
}

static inline int64_t byoc_attention_end(const byoc_attention_sight* s, int64_t query) {
  return s->is_causal ? byoc_max(0, byoc_min(s->keys, s->start + query + 1)) : s->keys;
}

static inline int64_t byoc_attention_begin(const byoc_attention_sight* s, int64_t query) {
  const int64_t begin = s->is_causal && s->window > 0 ? s->start + query + 1 - s->window : 0;
  return byoc_max(0, byoc_min(s->keys, begin));
}

/* Where the pages are in the kernel's data, if there are such, or what comes behind them. */
static inline int64_t byoc_attention_tables(const byoc_attention_params* p) {
  return 3 + p->rule.has_bias + p->reach.has_length + p->reach.has_starts;
}

/* The keys that there are. */
BYOC_FUNCTION int64_t byoc_attention_keys(const byoc_attention_params* p, void* const* data) {
  int64_t keys = p->keys;
  if (p->reach.has_length) memcpy(&keys, data[3 + p->rule.has_bias], sizeof(keys));
  return keys;
}

static inline int64_t byoc_attention_units(const byoc_attention_params* p) {
  return p->batch * p->key_heads * byoc_attention_parts(p);
}

#endif /* BYOC_ATTENTION_PLAN_H_ */
