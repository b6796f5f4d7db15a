/* SPDX-License-Identifier: Apache-2.0 */
/* New rows behind those that a cache has already. */
#ifndef BYOC_APPEND_H_
#define BYOC_APPEND_H_

#include "byoc_kernel.h"

/* Sizes in rows, `stride`s of the source in bytes. */
typedef struct __attribute__((may_alias)) byoc_append_params {
  int64_t batch, heads; /* the cache has `capacity` rows for each of both */
  int64_t rows, row_bytes;
  int64_t capacity;
  int64_t batch_stride, head_stride, row_stride;
} byoc_append_params;

/* The number of rows with the new ones. */
BYOC_FUNCTION int64_t byoc_append_length(void* const* data) {
  int64_t length;
  memcpy(&length, data[1], sizeof(length));
  return length;
}

BYOC_FUNCTION int byoc_append_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const byoc_append_params* p = (const byoc_append_params*)params;
  const int64_t all = p->batch * p->heads, before = byoc_append_length(data) - p->rows;
  (void)scratch;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    const char* from =
        (const char*)data[0] + i / p->heads * p->batch_stride + i % p->heads * p->head_stride;
    char* to = (char*)data[2] + (i * p->capacity + before) * p->row_bytes;
    for (int64_t row = 0; row < p->rows; ++row) {
      memcpy(to + row * p->row_bytes, from + row * p->row_stride, (size_t)p->row_bytes);
    }
  }
  return BYOC_OK;
}

/* data: the new rows; the number of rows with them (one int64); the cache. */
BYOC_FUNCTION int byoc_append(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const byoc_append_params* p = (const byoc_append_params*)params;
  const int64_t length = byoc_append_length(data);
  const int alone = p->batch * p->heads * p->rows * p->row_bytes <= BYOC_COPY_ALONE;
  if (length < p->rows || length > p->capacity) {
    snprintf(error, BYOC_ERROR_BYTES, "%lld rows in a cache, expected %lld to %lld",
             (long long)length, (long long)p->rows, (long long)p->capacity);
    return BYOC_BAD_INDEX;
  }
  return byoc_on_team(byoc_append_on_thread, params, data, scratch, alone ? 1 : threads);
}

#endif /* BYOC_APPEND_H_ */
