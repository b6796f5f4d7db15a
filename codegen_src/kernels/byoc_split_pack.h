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

BYOC_FUNCTION int byoc_split_pack_on_thread(const int64_t* params, void* const* data, void* scratch,
                                            int64_t part, int64_t parts) {
  const byoc_split_pack_params* k = (const byoc_split_pack_params*)params;
  const int64_t panels = (k->of.outputs + BYOC_SPLIT_PANEL - 1) / BYOC_SPLIT_PANEL;
  const int64_t size = byoc_split_chunks(&k->of) * byoc_split_chunk_size(&k->of, BYOC_SPLIT_PANEL);
  (void)scratch;
  for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
    byoc_split_pack_panel(k, (const float*)data[0], panel * BYOC_SPLIT_PANEL,
                          (uint16_t*)data[1] + panel * size);
  }
  return BYOC_OK;
}

/* params: byoc_split_pack_params. data: the weights, and what is made of them. */
BYOC_FUNCTION int byoc_split_pack(const int64_t* params, void* const* data, void* scratch,
                                  int threads, char* error) {
  (void)error;
  byoc_split_use_tiles();
  return byoc_on_team(byoc_split_pack_on_thread, params, data, scratch, threads);
}

#endif /* BYOC_SPLIT_PACK_H_ */
