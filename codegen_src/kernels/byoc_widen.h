/* SPDX-License-Identifier: Apache-2.0 */
/* Rows with room for more elements behind those that they have. */
#ifndef BYOC_WIDEN_H_
#define BYOC_WIDEN_H_

#include "byoc_kernel.h"

/* params: the number of rows, the elements of a row of the result, the bytes of one. data: the
   source, dense; the elements of its rows (one int64); the result, filled up with zeros. */
BYOC_FUNCTION int byoc_widen(const int64_t* params, void* const* data, void* scratch, int threads,
                             char* error) {
  const int64_t wide = params[1] * params[2];
  int64_t length, i;
  (void)scratch;
  (void)threads;
  memcpy(&length, data[1], sizeof(length));
  if (length < 0 || length > params[1]) {
    snprintf(error, BYOC_ERROR_BYTES, "rows of %lld elements, expected 0 to %lld",
             (long long)length, (long long)params[1]);
    return BYOC_BAD_INDEX;
  }
  length *= params[2];
  for (i = 0; i < params[0]; ++i) {
    char* to = (char*)data[2] + i * wide;
    memcpy(to, (const char*)data[0] + i * length, (size_t)length);
    memset(to + length, 0, (size_t)(wide - length));
  }
  return BYOC_OK;
}

#endif /* BYOC_WIDEN_H_ */
