// SPDX-License-Identifier: Apache-2.0
#include "native/threads.h"

#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "common/pace.h"

// Not in the libgomp of GCC 8 and before.
extern "C" __attribute__((weak)) int omp_pause_resource(omp_pause_resource_t kind, int device);

namespace tvm_byoc_dnnl {
namespace {

// A fork copies the thread that calls it and no other: in the child, the team of that thread would
// be waited for without end.
thread_local bool team_ended = false;

constexpr auto kLongestWait = std::chrono::seconds(1);
constexpr auto kBetweenLooks = std::chrono::microseconds(50);
std::atomic<int64_t> holding{0}, forking{0};  // threads
thread_local int64_t held = 0;                // by this thread

void WaitForOthers() {
  ++forking;
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  const int64_t own = held > 0 ? 1 : 0;
  while (holding > own && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kBetweenLooks);
}

/// Ends the team of the thread that is about to fork: each of the two processes then starts one
/// when it needs it. That is not possible inside of a parallel region.
void BeforeFork() {
  WaitForOthers();
  team_ended = omp_pause_resource != nullptr &&
               omp_pause_resource(omp_pause_soft, omp_get_initial_device()) == 0;
}

void InParent() { --forking; }

void InChild() {
  forking = 0;
  holding = held > 0 ? 1 : 0;
  if (!team_ended) omp_set_num_threads(1);
  RunningCall::ForgetAll();
}

}  // namespace

HoldsForks::HoldsForks() {
  if (held++ > 0) return;
  for (++holding; forking > 0; ++holding) {
    --holding;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

HoldsForks::~HoldsForks() {
  if (--held == 0) --holding;
}

void SurviveForks() { pthread_atfork(BeforeFork, InParent, InChild); }

int MaxThreads() { return omp_get_max_threads(); }

ScopedThreads::ScopedThreads(int threads) : threads_before_(omp_get_max_threads()) {
  if (threads > 0) omp_set_num_threads(threads);
}

ScopedThreads::~ScopedThreads() { omp_set_num_threads(threads_before_); }

}  // namespace tvm_byoc_dnnl
