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

/* data: the new rows; the number of rows with them (one int64); the cache. */
BYOC_FUNCTION int byoc_append(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const byoc_append_params* p = (const byoc_append_params*)params;
  const int64_t all = p->batch * p->heads;
  int64_t length, i, row;
  (void)scratch;
  (void)threads;
  memcpy(&length, data[1], sizeof(length));
  if (length < p->rows || length > p->capacity) {
    snprintf(error, BYOC_ERROR_BYTES, "%lld rows in a cache, expected %lld to %lld",
             (long long)length, (long long)p->rows, (long long)p->capacity);
    return BYOC_BAD_INDEX;
  }
  BYOC_OMP(parallel for num_threads(threads) private(row)
           if (all * p->rows * p->row_bytes > 65536))
  for (i = 0; i < all; ++i) {
    const char* from =
        (const char*)data[0] + i / p->heads * p->batch_stride + i % p->heads * p->head_stride;
    char* to = (char*)data[2] + (i * p->capacity + length - p->rows) * p->row_bytes;
    for (row = 0; row < p->rows; ++row) {
      memcpy(to + row * p->row_bytes, from + row * p->row_stride, (size_t)p->row_bytes);
    }
  }
  return BYOC_OK;
}

#endif /* BYOC_APPEND_H_ */
