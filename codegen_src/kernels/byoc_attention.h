/* SPDX-License-Identifier: Apache-2.0
   Scaled dot-product attention, float32: softmax(scale Q K' + bias) V, per batch and head.

   Keys and values are taken in blocks. For each block of rows the scores stay in the cache; what is
   summed up of the values is kept in the measure of the largest score so far, and divided by the
   sum of all shares at the end. Rows of queries that share keys and values (of several heads, too)
   are multiplied together by packed blocks; a few of them read keys and values where they lie. A
   row that sees no key is NaN, or 0 with `no_nan`. */
#ifndef BYOC_ATTENTION_H_
#define BYOC_ATTENTION_H_

#include "byoc_attention_plan.h"

#define BYOC_BODY "byoc_attention.h"
#include "byoc_each_isa.h"

BYOC_PARTS_FOR_ISA(attention, byoc_attention_params, p->isa)

/* The kernel. data: queries, keys, values; the bias, the number of keys (one int64), the starts (an
   int64 for each batch), the pages (for each batch the address of their numbers, int32) and the
   sinks, if there are such; result; sums of its rows, in their order. */
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

#elif defined(BYOC_VEC) /* for an instruction set: byoc_each_isa.h */

/* The products of as many queries as `rows`, at most 2, with four keys, `key_row` from one to the
   next. Neighbouring lanes are added until each key has one. */
BYOC_INLINE void BYOC_NAME(attention_four)(const int rows, const byoc_attention_params* p,
                                           const byoc_attention_room* room, const float* query,
                                           const float* key, int64_t key_row, __m128* to) {
  BYOC_VEC sums[2][4];
  BYOC_UNROLL
  for (int i = 0; i < 4 * rows; ++i) sums[i / 4][i % 4] = BYOC_NAME(set)(0.f);
  for (int64_t i = 0; i < p->key.width; i += BYOC_LANES) {
    const int lanes = (int)byoc_min(BYOC_LANES, p->key.width - i);
    BYOC_VEC x[2];
    for (int r = 0; r < rows; ++r) {
      x[r] = BYOC_NAME(load_some)(query + r * room->query_row + i, lanes);
    }
    BYOC_UNROLL
    for (int j = 0; j < 4; ++j) {
      const BYOC_VEC y = BYOC_NAME(load_some)(key + j * key_row + i, lanes);
      BYOC_UNROLL
      for (int r = 0; r < rows; ++r) sums[r][j] += x[r] * y;
    }
  }
  for (int r = 0; r < rows; ++r) {
    __m256 eight[4];
    BYOC_UNROLL
    for (int j = 0; j < 4; ++j) {
#ifdef BYOC_SIMD_AVX512
      eight[j] = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, (__m512)sums[r][j], 0),
                               _mm512_maskz_extractf32x8_ps(0xff, (__m512)sums[r][j], 1));
#else
      eight[j] = (__m256)sums[r][j];
#endif
    }
    const __m256 all =
        _mm256_hadd_ps(_mm256_hadd_ps(eight[0], eight[1]), _mm256_hadd_ps(eight[2], eight[3]));
    to[r] = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  }
}

/* Fetches a row of keys or values that will be read soon: a step reads each once, from memory. */
BYOC_INLINE void BYOC_NAME(attention_fetch)(const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i += 16) __builtin_prefetch(row + i);
}

/* The products of such queries with `count` keys, where these lie. If `is_fetching`, the rows of
   the values are fetched meanwhile. */
BYOC_INLINE void BYOC_NAME(attention_scores)(const int rows, const byoc_attention_params* p,
                                             const byoc_attention_room* room, const float* query,
                                             const byoc_attention_block* block, int64_t count,
                                             float* scores, int is_fetching) {
  __m128 of[2];
  for (int64_t k = 0; k < count; k += 4) {
    for (int64_t i = k; is_fetching && i < byoc_min(count, k + 4); ++i) {
      BYOC_NAME(attention_fetch)(block->value + i * block->value_row, p->value.width);
    }
    const int is_four = k + 4 <= count;
    const float* keys = block->key + k * block->key_row;
    for (int64_t i = 0; i < (is_four ? 1 : count - k); ++i) {
      BYOC_NAME(attention_four)
      (rows, p, room, query, keys + i * block->key_row, is_four ? block->key_row : 0, of);
      for (int r = 0; r < rows; ++r) {
        float* to = scores + r * room->score_row + k + i;
        if (is_four) {
          _mm_storeu_ps(to, of[r]);
        } else {
          _mm_store_ss(to, of[r]);
        }
      }
    }
  }
}

/* Keys as panels of BYOC_PANEL of them, transposed; values as panels of BYOC_PANEL columns. What
   fills up a panel is zero. */
BYOC_NO_INLINE void BYOC_NAME(attention_pack)(const byoc_attention_params* p,
                                              const byoc_attention_block* block, int64_t count,
                                              float* keys, float* values) {
  for (int64_t first = 0; first < count; first += BYOC_PANEL) {
    byoc_pack_panel(block->key + first * block->key_row, 1, block->key_row, p->key.width,
                    byoc_min(BYOC_PANEL, count - first), BYOC_PANEL, keys + first * p->key.width);
  }
  for (int64_t first = 0; first < p->value.width; first += BYOC_PANEL) {
    byoc_pack_panel(block->value + first, block->value_row, 1, count,
                    byoc_min(BYOC_PANEL, p->value.width - first), BYOC_PANEL,
                    values + first * count);
  }
}

/* Turns the scores of a row from `from` up to `seen` into exp(score - the largest so far), and what
   was summed up by an earlier largest score into the same measure. Behind the scores of `count`
   keys there is room for a vector. */
BYOC_NO_INLINE void BYOC_NAME(attention_weigh)(const byoc_attention_params* p, const float* bias,
                                               int64_t from, int64_t seen, int64_t count,
                                               float* scores, float* largest, float* sum,
                                               float* result) {
  const BYOC_VEC least = BYOC_NAME(set)(-INFINITY), lowest = BYOC_NAME(set)(-88.f);
  const int64_t end = from < seen ? byoc_round_up(seen, BYOC_LANES) : 0;
  if (end == 0) seen = 0;
  for (int64_t k = seen; k < end; ++k) scores[k] = -INFINITY;
  if (end < count) memset(scores + end, 0, (size_t)(count - end) * 4);
  if (seen == 0) return;
  if (p->rule.softcap != 0) {
    const BYOC_VEC cap = BYOC_NAME(set)((float)p->rule.softcap);
    for (int64_t k = 0; k < end; k += BYOC_LANES) {
      BYOC_NAME(store)(scores + k, cap * BYOC_NAME(tanh)(BYOC_NAME(load)(scores + k) / cap));
    }
    for (int64_t k = seen; k < end; ++k) scores[k] = -INFINITY;
  }
  for (int64_t k = 0; k < from; ++k) scores[k] = -INFINITY;
  BYOC_VEC top = least;
  for (int64_t k = 0; k < end; k += BYOC_LANES) {
    BYOC_VEC x = BYOC_NAME(load)(scores + k);
    if (bias != NULL) {
      x += BYOC_NAME(load_some)(bias + k, (int)byoc_min(BYOC_LANES, seen - k));
      BYOC_NAME(store)(scores + k, x);
    }
    top = BYOC_NAME(max)(top, x);
  }
  float lanes[BYOC_LANES], now = *largest;
  BYOC_NAME(store)(lanes, top);
  for (int i = 0; i < BYOC_LANES; ++i)
    now = lanes[i] > now || lanes[i] != lanes[i] ? lanes[i] : now;
  const BYOC_VEC base = BYOC_NAME(set)(now == -INFINITY ? 0.f : now);
  BYOC_VEC total = BYOC_NAME(set)(0.f);
  for (int64_t k = 0; k < end; k += BYOC_LANES) {
    const BYOC_VEC x = BYOC_NAME(max)(lowest, BYOC_NAME(load)(scores + k) - base);
    const BYOC_VEC e = BYOC_NAME(exp)(x);
    total += e;
    BYOC_NAME(store)(scores + k, e);
  }
  if (now != *largest) {
    const BYOC_VEC before = BYOC_NAME(set)(*largest);
    const BYOC_VEC factor = BYOC_NAME(exp)(BYOC_NAME(max)(lowest, before - base));
    BYOC_NAME(store)(lanes, factor);
    *sum *= lanes[0];
    for (int64_t i = 0; i < p->value.width; i += BYOC_LANES) {
      BYOC_NAME(store)(result + i, BYOC_NAME(load)(result + i) * factor);
    }
    *largest = now;
  }
  *sum += BYOC_NAME(sum_lanes)(total);
}

/* results += weights x values, where the values lie, for as many rows as `rows`, at most 3. Rows
   of the keys behind `coming`, if there is such, are fetched meanwhile. */
BYOC_INLINE void BYOC_NAME(attention_gather)(const int rows, const byoc_attention_params* p,
                                             const byoc_attention_room* room, const float* weights,
                                             const byoc_attention_block* block, int64_t count,
                                             float* results, const float* coming) {
  for (int64_t first = 0; first < p->value.width; first += 4 * BYOC_LANES) {
    const int64_t wide = byoc_min(4 * BYOC_LANES, p->value.width - first);
    BYOC_VEC sums[3][4];
    for (int i = 0; i < 4 * rows; ++i) sums[i / 4][i % 4] = BYOC_NAME(set)(0.f);
    if (wide == 4 * BYOC_LANES) {
      for (int64_t k = 0; k < count; ++k) {
        const float* row = block->value + k * block->value_row + first;
        if (coming != NULL && first == 0)
          BYOC_NAME(attention_fetch)(coming + k * block->key_row, p->key.width);
        BYOC_UNROLL
        for (int j = 0; j < 4; ++j) {
          const BYOC_VEC x = BYOC_NAME(load)(row + j * BYOC_LANES);
          BYOC_UNROLL
          for (int r = 0; r < rows; ++r) sums[r][j] += weights[r * room->score_row + k] * x;
        }
      }
    } else {
      for (int64_t k = 0; k < count; ++k) {
        const float* row = block->value + k * block->value_row + first;
        for (int j = 0; j * BYOC_LANES < wide; ++j) {
          const int lanes = (int)byoc_min(BYOC_LANES, wide - j * BYOC_LANES);
          const BYOC_VEC x = BYOC_NAME(load_some)(row + j * BYOC_LANES, lanes);
          for (int r = 0; r < rows; ++r) sums[r][j] += weights[r * room->score_row + k] * x;
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j * BYOC_LANES < wide; ++j) {
        float* to = results + r * room->result_row + first + j * BYOC_LANES;
        BYOC_NAME(store)(to, BYOC_NAME(load)(to) + sums[r][j]);
      }
    }
  }
}

/* Rows of numbers of one dtype as floats. */
BYOC_INLINE void BYOC_NAME(attention_widen)(const int dtype, const char* data, int64_t stride,
                                            int64_t count, int64_t width, float* to, int64_t row) {
  for (int64_t k = 0; k < count; ++k) {
    BYOC_NAME(load_row)(data, k * stride, dtype, width, 1.f, to + k * row);
  }
}

/* Rows of keys or values from `first` on where they lie, or as floats in `wide`. They are in
   `pages` of `page_rows`, if there are such. */
BYOC_NO_INLINE const float* BYOC_NAME(attention_floats)(const byoc_attention_source* source,
                                                        const char* data, const int32_t* pages,
                                                        int64_t page_rows, int64_t first,
                                                        int64_t count, float* wide, int64_t* row) {
  const int64_t width = source->width, stride = source->strides.row;
  const int64_t bytes = byoc_dtype_bytes(source->dtype);
  if (source->dtype == BYOC_F32 && pages == NULL) {
    *row = stride;
    return (const float*)(data + first * stride * bytes);
  }
  *row = byoc_round_up(width, 16);
  for (int64_t k = 0, together = count; k < count; k += together) {
    const char* from = data + (first + k) * stride * bytes;
    if (pages != NULL) {
      const int64_t within = (first + k) % page_rows;
      together = byoc_min(count - k, page_rows - within);
      from =
          data + (pages[(first + k) / page_rows] * source->strides.batch + within * stride) * bytes;
    }
    float* to = wide + k * *row;
    switch (source->dtype) {
      case BYOC_F32:
        BYOC_NAME(attention_widen)(BYOC_F32, from, stride, together, width, to, *row);
        break;
      case BYOC_BF16:
        BYOC_NAME(attention_widen)(BYOC_BF16, from, stride, together, width, to, *row);
        break;
      case BYOC_F16:
        BYOC_NAME(attention_widen)(BYOC_F16, from, stride, together, width, to, *row);
        break;
      default:
        BYOC_NAME(attention_widen)(BYOC_S8, from, stride, together, width, to, *row);
    }
  }
  return wide;
}

/* The head of keys or values that a batch reads. */
BYOC_INLINE const char* BYOC_NAME(attention_head)(const byoc_attention_source* source,
                                                  const void* data, int64_t batch, int64_t head) {
  const int64_t at = batch * source->strides.batch + head * source->strides.head;
  return (const char*)data + at * byoc_dtype_bytes(source->dtype);
}

/* A part of the rows that share one head of keys and values, number `unit` of all. */
BYOC_NO_INLINE void BYOC_NAME(attention_unit)(const byoc_attention_params* p, int64_t keys,
                                              int64_t unit, void* const* data, float* scratch) {
  const byoc_attention_room room = byoc_attention_divide(p);
  const int64_t parts = byoc_attention_parts(p), part = unit % parts;
  const int64_t head = unit / parts % p->key_heads, batch = unit / parts / p->key_heads;
  const int64_t group = p->heads / p->key_heads, all = byoc_attention_rows(p);
  const int64_t blocks = (all + BYOC_ATTENTION_ROWS - 1) / BYOC_ATTENTION_ROWS;
  const int64_t first_row = blocks * part / parts * BYOC_ATTENTION_ROWS;
  const int64_t last_row = byoc_min(all, blocks * (part + 1) / parts * BYOC_ATTENTION_ROWS);
  const int few = all <= BYOC_ATTENTION_FEW;
  const int64_t page_rows = p->reach.page_rows, tables = byoc_attention_tables(p);
  const int32_t* pages = page_rows > 0 ? ((const int32_t* const*)data[tables])[batch] : NULL;
  const float* query = (const float*)data[0] + batch * p->query.batch;
  const int64_t own = pages == NULL ? batch : 0;
  const char* key = BYOC_NAME(attention_head)(&p->key, data[1], own, head);
  const char* value = BYOC_NAME(attention_head)(&p->value, data[2], own, head);
  const int is_copied = byoc_attention_is_copied(p);
  const float* bias = p->rule.has_bias ? (const float*)data[3] + batch * p->bias.batch : NULL;
  const int64_t given = tables + (page_rows > 0);
  const float* sinks = p->rule.has_sinks ? (const float*)data[given] + head * group : NULL;
  void* const* results_of = data + given + p->rule.has_sinks;
  float* dst = (float*)results_of[0] + batch * p->dst.batch;
  const byoc_attention_sight sight = byoc_attention_sight_of(p, keys, batch, data);
  const BYOC_VEC scale = BYOC_NAME(set)((float)p->rule.scale);
  float* queries = scratch + room.queries;
  float* scores = scratch + room.scores;
  float* largest = scratch + room.largest;
  float* sums = scratch + room.sums;
  float* results = scratch + room.results;
  for (int64_t r = 0; r < last_row - first_row; ++r) {
    largest[r] = -INFINITY;
    sums[r] = 0;
  }
  memset(results, 0, (size_t)((last_row - first_row) * room.result_row) * 4);

  const int64_t begin = byoc_attention_begin(&sight, 0);
  const int64_t span = byoc_max(0, byoc_attention_end(&sight, p->queries - 1) - begin);
  const int64_t key_blocks = (span + BYOC_ATTENTION_KEYS - 1) / BYOC_ATTENTION_KEYS;
  for (int64_t b = 0; b < key_blocks; ++b) {
    const int64_t first = begin + span * b / key_blocks;
    const int64_t count = begin + span * (b + 1) / key_blocks - first;
    float* wide = scratch;
    byoc_attention_block given;
    given.key = BYOC_NAME(attention_floats)(&p->key, key, pages, page_rows, first, count, wide,
                                            &given.key_row);
    wide += room.keys / 2;
    given.value = BYOC_NAME(attention_floats)(&p->value, value, pages, page_rows, first, count,
                                              wide, &given.value_row);
    int packed = 0;
    for (int64_t row = first_row; row < last_row; row += BYOC_ATTENTION_ROWS) {
      const int64_t rows = byoc_min(BYOC_ATTENTION_ROWS, last_row - row);
      int64_t seen[BYOC_ATTENTION_ROWS], most = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t end = byoc_attention_end(&sight, (row + r) % p->queries);
        seen[r] = byoc_max(0, byoc_min(count, end - first));
        most = byoc_max(most, seen[r]);
      }
      if (most == 0) continue;
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = query + (head * group + (row + r) / p->queries) * p->query.head +
                            (row + r) % p->queries * p->query.row;
        float* to = queries + r * room.query_row;
        for (int64_t i = 0; i < p->key.width; i += BYOC_LANES) {
          const int lanes = (int)byoc_min(BYOC_LANES, p->key.width - i);
          BYOC_NAME(store)(to + i, BYOC_NAME(load_some)(from + i, lanes) * scale);
        }
      }
      if (few) {
        const byoc_passes passes = byoc_in_passes(rows, 2);
        for (int64_t pass = 0, r = 0; pass < passes.count; r += byoc_pass_rows(&passes, pass++)) {
          const float* of = queries + r * room.query_row;
          float* to = scores + r * room.score_row;
          const int is_first = pass == 0 && !is_copied;
          if (byoc_pass_rows(&passes, pass) == 2) {
            BYOC_NAME(attention_scores)(2, p, &room, of, &given, most, to, is_first);
          } else {
            BYOC_NAME(attention_scores)(1, p, &room, of, &given, most, to, is_first);
          }
        }
      } else {
        if (!packed) {
          BYOC_NAME(attention_pack)
          (p, &given, count, scratch + room.keys, scratch + room.values);
        }
        packed = 1;
        const byoc_matrices m =
            byoc_plain_product(queries, room.query_row, scratch + room.keys,
                               p->key.width * BYOC_PANEL, p->key.width, scores, room.score_row);
        BYOC_NAME(products)(rows, (most + BYOC_PANEL - 1) / BYOC_PANEL, &m, NULL);
      }
      float* block = results + (row - first_row) * room.result_row;
      for (int64_t r = 0; r < rows; ++r) {
        const float* added = bias == NULL
                                 ? NULL
                                 : bias + (head * group + (row + r) / p->queries) * p->bias.head +
                                       (row + r) % p->queries * p->bias.row + first;
        const int64_t from = byoc_attention_begin(&sight, (row + r) % p->queries) - first;
        BYOC_NAME(attention_weigh)
        (p, added, byoc_max(0, from), seen[r], most, scores + r * room.score_row,
         &largest[row - first_row + r], &sums[row - first_row + r], block + r * room.result_row);
      }
      if (few) {
        const byoc_passes passes = byoc_in_passes(rows, 3);
        for (int64_t pass = 0, r = 0; pass < passes.count; r += byoc_pass_rows(&passes, pass++)) {
          const float* of = scores + r * room.score_row;
          float* to = block + r * room.result_row;
          const int is_last = pass != 0 || b + 1 == key_blocks || is_copied;
          const float* coming = is_last ? NULL : given.key + count * given.key_row;
          switch (byoc_pass_rows(&passes, pass)) {
            case 3:
              BYOC_NAME(attention_gather)(3, p, &room, of, &given, most, to, coming);
              break;
            case 2:
              BYOC_NAME(attention_gather)(2, p, &room, of, &given, most, to, coming);
              break;
            default:
              BYOC_NAME(attention_gather)(1, p, &room, of, &given, most, to, coming);
          }
        }
      } else {
        byoc_matrices m = byoc_plain_product(scores, room.score_row, scratch + room.values,
                                             count * BYOC_PANEL, most, block, room.result_row);
        m.start = block;
        m.start_row = room.result_row;
        BYOC_NAME(products)(rows, room.result_row / BYOC_PANEL, &m, NULL);
      }
    }
  }
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* from = results + (row - first_row) * room.result_row;
    float* to =
        dst + (head * group + row / p->queries) * p->dst.head + row % p->queries * p->dst.row;
    float total = sums[row - first_row];
    if (sinks != NULL) total += expf(sinks[row / p->queries] - largest[row - first_row]);
    if (p->rule.has_sums) {
      ((float*)results_of[1])[(to - (float*)results_of[0]) / p->value.width] =
          log2f(total) + largest[row - first_row] * 1.44269504f; /* log2(e) */
    }
    if (p->rule.no_nan && !(total > 0)) {
      memset(to, 0, (size_t)p->value.width * 4);
      continue;
    }
    const BYOC_VEC sum = BYOC_NAME(set)(total);
    for (int64_t i = 0; i < p->value.width; i += BYOC_LANES) {
      const int lanes = (int)byoc_min(BYOC_LANES, p->value.width - i);
      BYOC_NAME(store_some)(to + i, BYOC_NAME(load)(from + i) / sum, lanes);
    }
  }
}

/* The work of one thread of a team. */
BYOC_NO_INLINE void BYOC_NAME(attention_part)(const byoc_attention_params* p, void* const* data,
                                              void* scratch, int64_t part, int64_t parts) {
  const int64_t units = byoc_attention_units(p), keys = byoc_attention_keys(p, data);
  float* own = (float*)scratch + part * byoc_attention_divide(p).floats;
  for (int64_t u = units * part / parts; u < units * (part + 1) / parts; ++u) {
    BYOC_NAME(attention_unit)(p, keys, u, data, own);
  }
}

#endif /* BYOC_ATTENTION_H_ */
