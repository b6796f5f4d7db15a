/* SPDX-License-Identifier: Apache-2.0 */
/* A function of bytes, given by a table of its results. */
#ifndef BYOC_LOOKUP_H_
#define BYOC_LOOKUP_H_

#include "byoc_kernel.h"

enum { BYOC_LOOKUP_WORDS = 32, BYOC_LOOKUP_CHUNK = 8, BYOC_LOOKUP_ALONE = 1 << 14 };

BYOC_FUNCTION int byoc_lookup_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const int64_t chunks = params[0] / BYOC_LOOKUP_CHUNK;
  const uint8_t* table = (const uint8_t*)(params + 1);
  const uint8_t* from = (const uint8_t*)data[0];
  uint8_t* to = (uint8_t*)data[1];
  (void)scratch;
  /* The results of a chunk are stored at once. */
  for (int64_t i = chunks * part / parts; i < chunks * (part + 1) / parts; ++i) {
    uint64_t some, found = 0;
    memcpy(&some, from + i * BYOC_LOOKUP_CHUNK, BYOC_LOOKUP_CHUNK);
    for (int shift = 0; shift < 8 * BYOC_LOOKUP_CHUNK; shift += 8) {
      found |= (uint64_t)table[(some >> shift) & 255] << shift;
    }
    memcpy(to + i * BYOC_LOOKUP_CHUNK, &found, BYOC_LOOKUP_CHUNK);
  }
  if (part + 1 < parts) return BYOC_OK;
  for (int64_t i = chunks * BYOC_LOOKUP_CHUNK; i < params[0]; ++i) to[i] = table[from[i]];
  return BYOC_OK;
}

/* params: the number of bytes, and 256 results, eight of them in each number. data: the bytes, and
   the results. */
BYOC_FUNCTION int byoc_lookup(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  (void)error;
  return byoc_on_team(byoc_lookup_on_thread, params, data, scratch,
                      params[0] > BYOC_LOOKUP_ALONE ? threads : 1);
}

#endif /* BYOC_LOOKUP_H_ */
