// SPDX-License-Identifier: Apache-2.0
// In place of threads.cc in codegen_src/native and codegen_src/runtime: a fuzz target has one
// thread, and clang may have no OpenMP.
#include "native/threads.h"
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {

void KeepTeamOnAllCores() {}
void SurviveForks() {}
HoldsForks::HoldsForks() = default;
HoldsForks::~HoldsForks() = default;
void UseTeamForTVM() {}
int MaxThreads() { return 1; }
ScopedThreads::ScopedThreads(int) : threads_before_(1) {}
ScopedThreads::~ScopedThreads() {}

}  // namespace tvm_byoc_dnnl
