// SPDX-License-Identifier: Apache-2.0
#include "runtime/threads.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "native/threads.h"

namespace {

// The C interface between TVM's generated code and its runtime.
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task, ParallelGroupEnv* env, void* closure);
using Launch = int (*)(ParallelLambda lambda, void* closure, int num_task);

int LaunchOnOpenMP(ParallelLambda lambda, void* closure, int num_task) {
  if (num_task == 0) num_task = omp_get_max_threads();
  ParallelGroupEnv env{nullptr, num_task};
  return tvm_byoc_dnnl::OnTeam(std::min(byoc_threads(), num_task),
                               [&](int64_t part, int64_t parts) {
                                 int status = 0;
                                 for (int64_t task = part; task < num_task; task += parts) {
                                   if (lambda(static_cast<int>(task), &env, closure) != 0)
                                     status = -1;
                                 }
                                 return status;
                               });
}

// TVM's pool, which a fork does not copy.
thread_local bool pool_started = false;  // for this thread
thread_local bool pool_lost = false;

void InChild() { pool_lost = pool_started; }

Launch tvm_launch = nullptr;

/// TVM's launcher; OpenMP's where the number of threads is given, and in a child whose parent had
/// started TVM's pool, which is gone.
int LaunchOnLivingPool(ParallelLambda lambda, void* closure, int num_task) {
  if (pool_lost || tvm_byoc_dnnl::ScopedThreads::IsAlive())
    return LaunchOnOpenMP(lambda, closure, num_task);
  pool_started = true;
  return tvm_launch(lambda, closure, num_task);
}

void RegisterLauncher(Launch launch) {
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch",
                                                            reinterpret_cast<void*>(launch)));
}

}  // namespace

namespace tvm_byoc_dnnl {

void KeepTeamOnAllCores() { setenv("TVM_BIND_THREADS", "0", /*overwrite=*/0); }

void SurviveForksInTVM() {
  pthread_atfork(nullptr, nullptr, InChild);
  tvm_launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "TVMBackendParallelLaunch"));
  if (tvm_launch != nullptr) RegisterLauncher(&LaunchOnLivingPool);
}

void UseOpenMPForTVM() { RegisterLauncher(&LaunchOnOpenMP); }

}  // namespace tvm_byoc_dnnl
