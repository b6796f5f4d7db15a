// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>

#include "common/grant.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr double kMargin = 1.1;      // over the next level's usual time, of a late call
constexpr double kRecentCalls = 12;  // over which the mean is taken
constexpr double kMostOfMean = 3;    // as much counts a call that took longer than this
constexpr int64_t kCallsBeforeLook = 8, kCallsOfLook = 2, kCallsBetweenLooks = 1024;
constexpr double kWaking = 1e-4;  // seconds that sleeping threads may cost the call that wakes them
constexpr double kCallsToRepay = 128;   // what an attempt has lost: less than 1 %
constexpr double kLongRest = 32;        // calls
constexpr double kLongestRest = 2;      // seconds, if that is more than a long rest
constexpr int kCallsOfPause = 24;       // of which one is stopped, so that nothing is done about it
constexpr double kShortestCall = 1e-9;  // seconds

std::atomic<int64_t> running{0}, begun{0};

/// Follows the times of a level, a slow call by little: the first one is slow, others may be late.
double Follow(double usual, double seconds) {
  if (usual == 0 || seconds < usual) return seconds;
  return usual + std::min(seconds - usual, usual / 4) / 4;
}

/// Seconds that all threads of this process have used.
double UsedSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int Pace::Threads(int all, const Allowance& allowed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (levels_.empty()) {
    for (int threads = all; threads > 1; threads /= 2) levels_.push_back({threads});
    levels_.push_back({1});
  }
  size_t level = level_ > 0 && rest_ <= 0 ? level_ - 1 : level_;
  while (levels_[level].threads > std::max(1, allowed.threads)) ++level;
  if (level + 1 < levels_.size() && IsForNext(level, allowed)) ++level;
  return levels_[level].threads;
}

/// Whether a call uses the next level though its plan stays at this one: for a look, or in turn.
bool Pace::IsForNext(size_t level, const Allowance& allowed) const {
  const Level &own = levels_[level], &next = levels_[level + 1];
  if (next.calls < kCallsOfLook + own.calls / kCallsBetweenLooks && allowed.alone)
    return own.calls >= kCallsBeforeLook;
  return allowed.pause > 0 && next.usual > 0 && own.threads > allowed.cores &&
         own.usual * kCallsOfPause >= allowed.between &&
         own.usual * own.threads / allowed.cores + allowed.pause >= next.usual;
}

void Pace::StayAt(size_t level, double recent) {
  level_ = level;
  recent_ = recent;
  rest_ = kShortRest;
}

bool Pace::Learn(int threads, double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t at = 0;
  while (at < levels_.size() && levels_[at].threads != threads) ++at;
  if (at == levels_.size()) return false;
  Level& level = levels_[at];
  seconds = std::max(seconds, kShortestCall);
  level.usual = Follow(level.usual, seconds);
  ++level.calls;
  if (at == level_) --rest_;
  if (at + 1 == levels_.size() || levels_[at + 1].calls < kCallsOfLook) return false;

  const double next = levels_[at + 1].usual;
  const double ratio = std::min(seconds / next, kMostOfMean);
  if (at == level_) {
    if (recent_ == 0) recent_ = std::min(level.usual / next, kMostOfMean);
    recent_ += (ratio - recent_) / kRecentCalls;
    if (recent_ > 1) StayAt(at + 1, 0);
  } else if (at + 1 == level_) {
    is_waking_ = !is_waking_ && ratio >= 1 && seconds < next + kWaking;
    if (ratio < 1) {
      wait_ = kShortRest;
      StayAt(at, ratio);
    } else if (!is_waking_) {
      const double most = std::min(std::max(kLongestRest / next, kLongRest), wait_ *= 2);
      rest_ = std::clamp(kCallsToRepay * (ratio - 1), kShortRest, most);
    }
  }
  return ratio > kMargin;
}

RunningCall::RunningCall() : number_(++begun), began_alone_(++running == 1) {}
RunningCall::~RunningCall() { --running; }

void RunningCall::ForgetAll() { running = 0; }

Allowance RunningCall::Allowed() const {
  static Budget budget(GrantOfProcess());
  const Grant& grant = GrantOfProcess();
  Allowance allowed{grant.Threads(), IsAlone(), grant.cores};
  if (allowed.threads > grant.cores && budget.IsSpent(Now(), UsedSeconds())) {
    allowed.between = grant.period * grant.cores / allowed.threads;
    allowed.pause = grant.period - allowed.between;
  }
  const auto calls = static_cast<int>(running.load());
  if (calls <= 1) return allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  allowed.threads = std::max(1, std::min(cores, allowed.threads) / calls);
  return allowed;
}

bool RunningCall::IsAlone() const {
  return began_alone_ && running.load() == 1 && begun.load() == number_;
}

}  // namespace tvm_byoc_dnnl
