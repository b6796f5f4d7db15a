/* SPDX-License-Identifier: Apache-2.0
   The weights of byoc_split.h, split into parts and put into tiles, made once. */
#ifndef BYOC_SPLIT_PACK_H_
#define BYOC_SPLIT_PACK_H_

#include <sys/syscall.h>
#include <unistd.h>

#include "byoc_split_body.h"

/* Linux: before a process uses AMX. */
static inline void byoc_split_use_tiles(void) {
  enum { kRequestState = 0x1023, kTiles = 18 };
  syscall(SYS_arch_prctl, kRequestState, kTiles);
}

/* params: byoc_split_pack_params. data: the weights, and what is made of them. */
BYOC_FUNCTION int byoc_split_pack(const int64_t* params, void* const* data, void* scratch,
                                  int threads, char* error) {
  const byoc_split_pack_params* k = (const byoc_split_pack_params*)params;
  const int64_t columns = k->of.outputs;
  const int64_t size = byoc_split_chunks(&k->of) * byoc_split_chunk_size(&k->of, BYOC_SPLIT_PANEL);
  byoc_split_use_tiles();
  (void)scratch;
  (void)error;
  (void)threads; /* without OpenMP */
  BYOC_OMP(parallel for schedule(static) num_threads(threads))
  for (int64_t column = 0; column < columns; column += BYOC_SPLIT_PANEL) {
    byoc_split_pack_panel(k, (const float*)data[0], column,
                          (uint16_t*)data[1] + column / BYOC_SPLIT_PANEL * size);
  }
  return BYOC_OK;
}

#endif /* BYOC_SPLIT_PACK_H_ */
