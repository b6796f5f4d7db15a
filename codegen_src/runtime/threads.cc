// SPDX-License-Identifier: Apache-2.0
#include "runtime/threads.h"

#include <omp.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/pace.h"
#include "native/threads.h"

namespace {

// The C interface between TVM's generated code and its runtime.
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task, ParallelGroupEnv* env, void* closure);

/// `num_task`: 0 for one on each thread.
int Launch(ParallelLambda lambda, void* closure, int num_task) {
  const tvm_byoc_dnnl::HoldsForks here;
  const tvm_byoc_dnnl::RunningCall call;
  int threads = std::min(byoc_threads(), call.Allowed().threads);
  if (num_task > 0) threads = std::min(threads, num_task);
  return tvm_byoc_dnnl::OnTeam(threads, [&](int64_t part, int64_t parts) {
    ParallelGroupEnv env{nullptr, num_task > 0 ? num_task : static_cast<int32_t>(parts)};
    int status = 0;
    for (int64_t task = part; task < env.num_task; task += parts) {
      if (lambda(static_cast<int>(task), &env, closure) != 0) status = -1;
    }
    return status;
  });
}

/// For code that launches one task on each thread; no other has barriers.
int WaitForAll(int /*task*/, ParallelGroupEnv* env) {
  byoc_wait_for_team(env->num_task);
  return 0;
}

template <typename Function>
void Register(const char* name, Function* function) {
  TVM_FFI_CHECK_SAFE_CALL(
      TVMFFIEnvModRegisterContextSymbol(name, reinterpret_cast<void*>(function)));
}

}  // namespace

namespace tvm_byoc_dnnl {

void KeepTeamOnAllCores() { setenv("TVM_BIND_THREADS", "0", /*overwrite=*/0); }

void UseTeamForTVM() {
  Register("__TVMBackendParallelLaunch", &Launch);
  Register("__TVMBackendParallelBarrier", &WaitForAll);
}

}  // namespace tvm_byoc_dnnl
