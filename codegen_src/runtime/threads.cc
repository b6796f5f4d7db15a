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

#include "common/pace.h"

// Not in the libgomp of GCC 8 and before.
extern "C" __attribute__((weak)) int omp_pause_resource(omp_pause_resource_t kind, int device);

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

// A fork copies the thread that calls it and no other: in the child, the team of that thread would
// be waited for without end.
thread_local bool team_ended = false;
thread_local bool pool_started = false;  // TVM's, for this thread
thread_local bool pool_lost = false;

/// Ends the team of the thread that is about to fork: each of the two processes then starts one
/// when it needs it. That is not possible inside of a parallel region.
void BeforeFork() {
  team_ended = omp_pause_resource != nullptr &&
               omp_pause_resource(omp_pause_soft, omp_get_initial_device()) == 0;
}

void InChild() {
  if (!team_ended) omp_set_num_threads(1);
  pool_lost = pool_started;
  tvm_byoc_dnnl::RunningCall::ForgetAll();
}

Launch tvm_launch = nullptr;
thread_local bool scoped = false;  // in a ScopedThreads

/// TVM's launcher; OpenMP's where the number of threads is given, and in a child whose parent had
/// started TVM's pool, which is gone.
int LaunchOnLivingPool(ParallelLambda lambda, void* closure, int num_task) {
  if (pool_lost || scoped) return LaunchOnOpenMP(lambda, closure, num_task);
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

void SurviveForks() {
  pthread_atfork(BeforeFork, nullptr, InChild);
  tvm_launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "TVMBackendParallelLaunch"));
  if (tvm_launch != nullptr) RegisterLauncher(&LaunchOnLivingPool);
}

void UseOpenMPForTVM() { RegisterLauncher(&LaunchOnOpenMP); }

int MaxThreads() { return omp_get_max_threads(); }

ScopedThreads::ScopedThreads(int threads)
    : engines_before_(omp_get_max_threads()), tvm_before_(scoped) {
  omp_set_num_threads(threads);
  scoped = true;
}

ScopedThreads::~ScopedThreads() {
  omp_set_num_threads(engines_before_);
  scoped = tvm_before_;
}

}  // namespace tvm_byoc_dnnl
