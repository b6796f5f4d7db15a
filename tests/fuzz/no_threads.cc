// SPDX-License-Identifier: Apache-2.0
// In place of codegen_src/runtime/threads.cc: a fuzz target has one thread, and clang may have no
// OpenMP.
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {

void KeepTeamOnAllCores() {}
void SurviveForks() {}
void UseOpenMPForTVM() {}
int MaxThreads() { return 1; }
ScopedThreads::ScopedThreads(int) : engines_before_(1), tvm_before_(false) {}
ScopedThreads::~ScopedThreads() {}

}  // namespace tvm_byoc_dnnl
