/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a part of a buffer with one element, over and over. */
#ifndef BYOC_FILL_H_
#define BYOC_FILL_H_

#include "byoc_kernel.h"

/* params: the bytes to fill, the bytes of the element (1, 2, 4 or 8), and these as the first bytes
   of a number in memory. data: the part. */
BYOC_FUNCTION int byoc_fill(const int64_t* params, void* const* data, void* scratch, int threads,
                            char* error) {
  const size_t bytes = (size_t)params[0];
  const char* element = (const char*)&params[2];
  char* to = (char*)data[0];
  size_t done = (size_t)params[1];
  (void)scratch;
  (void)threads;
  (void)error;
  if (done == 1) {
    memset(to, element[0], bytes);
    return BYOC_OK;
  }
  if (done > bytes) done = bytes;
  memcpy(to, element, done);
  while (done < bytes) { /* copies the filled part behind itself */
    const size_t chunk = done < bytes - done ? done : bytes - done;
    memcpy(to + done, to, chunk);
    done += chunk;
  }
  return BYOC_OK;
}

#endif /* BYOC_FILL_H_ */
