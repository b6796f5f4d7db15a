// SPDX-License-Identifier: Apache-2.0
#include "runtime/threads.h"

#include <omp.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

// The C interface between TVM's generated code and its runtime.
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task, ParallelGroupEnv* env, void* closure);

int LaunchOnOpenMP(ParallelLambda lambda, void* closure, int num_task) {
  const int threads = omp_get_max_threads();
  if (num_task == 0) num_task = threads;
  ParallelGroupEnv env{nullptr, num_task};
  std::atomic<int> status{0};
  auto run = [&](int first, int step) {
    for (int task = first; task < num_task; task += step) {
      if (lambda(task, &env, closure) != 0) status = -1;
    }
  };
  if (threads == 1 || num_task == 1 || omp_in_parallel()) {
    run(0, 1);
  } else {
#pragma omp parallel num_threads(std::min(threads, num_task))
    run(omp_get_thread_num(), omp_get_num_threads());
  }
  return status;
}

}  // namespace

namespace tvm_byoc_dnnl {

void KeepTeamOnAllCores() { setenv("TVM_BIND_THREADS", "0", /*overwrite=*/0); }

void UseOpenMPForTVM() {
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIEnvModRegisterContextSymbol(
      "__TVMBackendParallelLaunch", reinterpret_cast<void*>(&LaunchOnOpenMP)));
}

int MaxThreads() { return omp_get_max_threads(); }

}  // namespace tvm_byoc_dnnl
