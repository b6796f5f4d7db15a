/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of a tensor along one axis, each found by its index. */
#ifndef BYOC_GATHER_H_
#define BYOC_GATHER_H_

#include "byoc_kernel.h"

/* The meaning of an index along an axis of n slices. */
enum {
  BYOC_GATHER_CHECKED,  /* 0 to n - 1; any other one fails the call with BYOC_BAD_INDEX */
  BYOC_GATHER_FROM_END, /* a negative one counts from the end; then clamped */
  BYOC_GATHER_CLIP,     /* clamped */
  BYOC_GATHER_WRAP      /* modulo n */
};

BYOC_FUNCTION int64_t byoc_gather_index(const void* indices, int64_t bytes, int64_t at) {
  return bytes == 8 ? ((const int64_t*)indices)[at] : ((const int32_t*)indices)[at];
}

/* The slice that an index means, always one of the n that there are; -1 for one that is refused. */
BYOC_FUNCTION int64_t byoc_gather_slice(int64_t index, int64_t n, int64_t mode) {
  if (mode == BYOC_GATHER_WRAP) {
    index %= n;
    return index < 0 ? index + n : index;
  }
  if (mode == BYOC_GATHER_CHECKED) return index < 0 || index >= n ? -1 : index;
  if (mode == BYOC_GATHER_FROM_END && index < 0) index += n;
  return index < 0 ? 0 : index >= n ? n - 1 : index;
}

/* Copies with a size that the compiler knows are one instruction. */
BYOC_FUNCTION void byoc_gather_copy(char* to, const char* from, int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      memcpy(to, from, 2);
      return;
    case 4:
      memcpy(to, from, 4);
      return;
    default:
      memcpy(to, from, (size_t)bytes);
  }
}

/* Returns whether an index was refused. */
BYOC_FUNCTION int byoc_gather_on_thread(const int64_t* params, void* const* data, void* scratch,
                                        int64_t part, int64_t parts) {
  const int64_t mode = params[0], n = params[2], slice = params[3];
  const int64_t count = params[4], width = params[5], all = params[1] * count;
  const char* from = (const char*)data[0];
  char* to = (char*)data[2];
  int refused = 0;
  (void)scratch;
  for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
    const int64_t at = byoc_gather_slice(byoc_gather_index(data[1], width, i % count), n, mode);
    if (at < 0) {
      refused = 1;
      continue;
    }
    byoc_gather_copy(to + i * slice, from + (i / count * n + at) * slice, slice);
  }
  return refused;
}

/* params: the mode; how many times the axis is run through, n, the bytes of a slice; the number of
   indices, the bytes of one. data: source, indices, result; all dense. */
BYOC_FUNCTION int byoc_gather(const int64_t* params, void* const* data, void* scratch, int threads,
                              char* error) {
  const int64_t mode = params[0], n = params[2], count = params[4], width = params[5];
  const int alone = params[1] * count * params[3] <= BYOC_COPY_ALONE;
  int64_t i;
  if (!byoc_on_team(byoc_gather_on_thread, params, data, scratch, alone ? 1 : threads))
    return BYOC_OK;
  for (i = 0; i + 1 < count; ++i) {
    if (byoc_gather_slice(byoc_gather_index(data[1], width, i), n, mode) < 0) break;
  }
  snprintf(error, BYOC_ERROR_BYTES,
           "gather: index %lld is out of range, the axis has %lld elements",
           (long long)byoc_gather_index(data[1], width, i), (long long)n);
  return BYOC_BAD_INDEX;
}

#endif /* BYOC_GATHER_H_ */
