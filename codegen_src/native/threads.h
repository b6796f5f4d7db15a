// SPDX-License-Identifier: Apache-2.0
// The team of threads that the engines compute with.
#pragma once

namespace tvm_byoc_dnnl {

/// Lets a process that forks, and its child, compute as before: each with a team of its own.
void SurviveForks();

/// While one lives, a fork in another thread waits, for up to a second: what this thread does would
/// be lost in the child, and the locks that it holds, of ours and of libraries, would stay taken.
/// The code inside must not wait for Python, whose lock the thread that forks may hold.
class HoldsForks {
 public:
  HoldsForks();
  ~HoldsForks();
  HoldsForks(const HoldsForks&) = delete;
  HoldsForks& operator=(const HoldsForks&) = delete;
};

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
