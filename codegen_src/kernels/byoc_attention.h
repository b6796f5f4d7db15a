/* SPDX-License-Identifier: Apache-2.0
   Scaled dot-product attention, float32: softmax(scale Q K' + bias) V, per batch and head.

   Keys and values are taken in blocks. For each block of rows the scores stay in the cache; what is
   summed up of the values is kept in the measure of the largest score so far, and divided by the
   sum of all shares at the end. Rows of queries that share keys and values (of several heads, too)
   are multiplied together by packed blocks; a few of them read keys and values where they lie. A
   row that sees no key is NaN, or 0 with `no_nan`.

   C99 that is C++17 as well, for GCC and Clang on x86-64: the library is built from this file, and
   emitted source includes it. Compilers may contract a * b + c differently; the same compiler gives
   the same bits, with any number of threads. */
#ifndef BYOC_ATTENTION_H_
#define BYOC_ATTENTION_H_

#include <math.h>

#include "byoc_attention_plan.h"

/* The keys of a batch that its queries see: all `keys`, or those up to the query's own position, of
   which the first query has `start`. */
typedef struct byoc_attention_sight {
  int64_t keys, start, window;
  int is_causal;
} byoc_attention_sight;

static inline byoc_attention_sight byoc_attention_sight_of(const byoc_attention_params* p,
                                                           int64_t keys, int64_t batch,
                                                           void* const* data) {
  byoc_attention_sight s = {keys, 0, p->window, p->has_starts != 0};
  if (s.is_causal) {
    memcpy(&s.start, (const char*)data[3 + p->has_bias + p->has_length] + batch * 8, 8);
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

#define BYOC_BODY "byoc_attention_body.h"
#include "byoc_each_isa.h"

/* The keys that there are. */
BYOC_FUNCTION int64_t byoc_attention_keys(const byoc_attention_params* p, void* const* data) {
  int64_t keys = p->keys;
  if (p->has_length) memcpy(&keys, data[3 + p->has_bias], sizeof(keys));
  return keys;
}

static inline int64_t byoc_attention_units(const byoc_attention_params* p) {
  return p->batch * p->key_heads * byoc_attention_parts(p);
}

BYOC_FUNCTION int byoc_attention_on_thread(const int64_t* params, void* const* data, void* scratch,
                                           int64_t part, int64_t parts) {
  const byoc_attention_params* p = (const byoc_attention_params*)params;
  const int64_t units = byoc_attention_units(p), keys = byoc_attention_keys(p, data);
  float* own = (float*)scratch + part * byoc_attention_divide(p).floats;
  for (int64_t u = units * part / parts; u < units * (part + 1) / parts; ++u) {
    BYOC_FOR_ISA(p->isa, attention_part, (p, keys, u, data, own));
  }
  return BYOC_OK;
}

/* The kernel. data: queries, keys, values; the bias, the number of keys (one int64), the starts (an
   int64 for each batch) and the sinks, if there are such; result. */
BYOC_FUNCTION int byoc_attention(const int64_t* params, void* const* data, void* scratch,
                                 int threads, char* error) {
  const byoc_attention_params* p = (const byoc_attention_params*)params;
  const int64_t keys = byoc_attention_keys(p, data);
  if (keys < 0 || keys > p->keys) {
    snprintf(error, BYOC_ERROR_BYTES, "attention over %lld keys, expected 0 to %lld",
             (long long)keys, (long long)p->keys);
    return BYOC_BAD_INDEX;
  }
  return byoc_on_team(byoc_attention_on_thread, params, data, scratch,
                      byoc_min(threads, byoc_min(p->threads, byoc_attention_units(p))));
}

#endif /* BYOC_ATTENTION_H_ */
