/* SPDX-License-Identifier: Apache-2.0 */
/* A cache with new rows in it. */
#ifndef BYOC_APPEND_H_
#define BYOC_APPEND_H_

#include "byoc_kernel.h"

/* Sizes in rows, `stride`s of the new rows in bytes. */
typedef struct __attribute__((may_alias)) byoc_append_params {
  int64_t batch, heads; /* the cache has `capacity` rows for each of both */
  int64_t rows, row_bytes;
  int64_t capacity;
  int64_t past_rows;  /* of the cache before, which are copied; -1: they are there already */
  int64_t places;     /* numbers that say where the new rows go: one, or one for each batch */
  int64_t places_end; /* such a number is where they end, else where they begin */
  int64_t batch_stride, head_stride, row_stride;
} byoc_append_params;

/* Where the new rows of a batch begin. */
BYOC_FUNCTION int64_t byoc_append_start(const byoc_append_params* p, void* const* data,
                                        int64_t batch) {
  int64_t place;
  memcpy(&place, (const char*)data[1] + (p->places == 1 ? 0 : batch) * 8, sizeof(place));
  return place - (p->places_end ? p->rows : 0);
}

/* The rows of one head; those that would lie outside of the cache are left out. */
BYOC_FUNCTION void byoc_append_head(const byoc_append_params* p, void* const* data, int64_t i) {
  const int64_t start = byoc_append_start(p, data, i / p->heads);
  const char* from =
      (const char*)data[0] + i / p->heads * p->batch_stride + i % p->heads * p->head_stride;
  char* to = (char*)data[p->past_rows < 0 ? 2 : 3] + i * p->capacity * p->row_bytes;
  const int64_t first = byoc_min(byoc_max(start, 0), p->capacity);
  const int64_t last = byoc_max(first, byoc_min(start + p->rows, p->capacity));
  if (p->past_rows >= 0) {
    const char* past = (const char*)data[2] + i * p->past_rows * p->row_bytes;
    const int64_t kept = byoc_min(first, p->past_rows);
    if (kept > 0) memcpy(to, past, (size_t)(kept * p->row_bytes));
    memset(to + kept * p->row_bytes, 0, (size_t)((first - kept) * p->row_bytes));
    const int64_t rest = byoc_max(last, byoc_min(p->past_rows, p->capacity));
    if (rest > last) {
      memcpy(to + last * p->row_bytes, past + last * p->row_bytes,
             (size_t)((rest - last) * p->row_bytes));
    }
    memset(to + rest * p->row_bytes, 0, (size_t)((p->capacity - rest) * p->row_bytes));
  }
  for (int64_t row = first; row < last; ++row) {
    memcpy(to + row * p->row_bytes, from + (row - start) * p->row_stride, (size_t)p->row_bytes);
  }
}

BYOC_FUNCTION int byoc_append_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const byoc_append_params* p = (const byoc_append_params*)params;
  const int64_t all = p->batch * p->heads;
  (void)scratch;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    byoc_append_head(p, data, i);
  }
  return BYOC_OK;
}

/* data: the new rows; where they go (int64); the cache before, if it is not there already; the
   cache. */
BYOC_FUNCTION int byoc_append(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const byoc_append_params* p = (const byoc_append_params*)params;
  const int64_t written = p->past_rows < 0 ? p->rows : p->capacity;
  const int alone = p->batch * p->heads * written * p->row_bytes <= BYOC_COPY_ALONE;
  (void)error;
  return byoc_on_team(byoc_append_on_thread, params, data, scratch, alone ? 1 : threads);
}

#endif /* BYOC_APPEND_H_ */
