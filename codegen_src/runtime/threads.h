// SPDX-License-Identifier: Apache-2.0
// One team of threads for the engines and for TVM's own loops.
#pragma once

#include <cstdint>

#include "byoc_team.h"

namespace tvm_byoc_dnnl {

/// TVM's thread pool binds the thread that starts it to half of the cores, and OpenMP's team
/// inherits that mask. Turns the binding off (TVM_BIND_THREADS=0) unless the user has said
/// otherwise; before the pool exists.
void KeepTeamOnAllCores();

/// Runs the parallel loops of the TVM modules that are loaded from now on with the engines' team.
void UseTeamForTVM();

/// Runs `int work(part, parts)` for each part, as byoc_on_team does for kernels.
template <typename Work>
int OnTeam(int64_t threads, Work work) {
  void* data[] = {&work};
  return byoc_on_team([](const int64_t*, void* const* of_work, void*, int64_t part,
                         int64_t parts) { return (*static_cast<Work*>(of_work[0]))(part, parts); },
                      nullptr, data, nullptr, threads);
}

}  // namespace tvm_byoc_dnnl
