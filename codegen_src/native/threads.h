// SPDX-License-Identifier: Apache-2.0
// The team of threads that the engines compute with.
#pragma once

namespace tvm_byoc_dnnl {

/// Lets a process that forks, and its child, compute as before: each with a team of its own. What
/// other threads were doing at the fork is lost in the child, as after any fork.
void SurviveForks();

/// The threads that the calling thread's loops use.
int MaxThreads();

/// While it lives, the parallel loops that the calling thread starts, those of engines and of TVM,
/// use so many threads; 0: as many as before. Other threads are not affected.
class ScopedThreads {
 public:
  explicit ScopedThreads(int threads);
  ~ScopedThreads();
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  const int threads_before_;
};

}  // namespace tvm_byoc_dnnl
