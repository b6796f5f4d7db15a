// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <ctime>
#include <limits>

#include "common/grant.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kTooOften = 2;          // late ones among the last eight calls
constexpr double kMargin = 1.1;          // over the usual time of the next level
constexpr int64_t kShortRest = 32;       // calls: attempts are fewer than one call of twenty
constexpr int64_t kLongRest = 1024;      // calls
constexpr double kLongestRest = 3;       // seconds, if that is more than a short rest
constexpr int64_t kOnTime = 256;         // calls with all threads, after which patience ends
constexpr int64_t kCallsBeforeLook = 8;  // at the next level
constexpr int64_t kCallsOfLook = 2;
constexpr int kCallsOfPause = 24;  // of which one is stopped, so that nothing is done about it

std::atomic<int64_t> running{0}, begun{0};

/// Follows the times of a level, a slow call by little.
double Follow(double usual, double seconds) {
  if (usual == 0) return seconds;
  return seconds < usual ? (usual + seconds) / 2 : usual + std::min(seconds - usual, usual / 4) / 4;
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
    patience_ = kShortRest;
  }
  size_t level = level_ > 0 && rest_ <= 0 ? level_ - 1 : level_;
  while (levels_[level].threads > std::max(1, allowed.threads)) ++level;
  if (!IsWorthAPause(level, allowed)) ++level;
  return levels_[level].threads;
}

bool Pace::IsWorthAPause(size_t level, const Allowance& allowed) const {
  const Level& own = levels_[level];
  if (allowed.pause == 0 || own.threads <= allowed.cores || level + 1 == levels_.size())
    return true;
  if (own.best * kCallsOfPause < allowed.between) return true;
  const double others = levels_[level + 1].usual;
  return others == 0 || own.best * own.threads / allowed.cores + allowed.pause < others;
}

bool Pace::Learn(int threads, double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < levels_.size(); ++i) {
    Level& level = levels_[i];
    if (level.threads != threads) continue;
    level.best = level.best == 0 ? seconds : std::min(level.best, seconds);
    bool late = false;
    if (i == level_) {
      late = LearnHere(seconds);
    } else if (i + 1 == level_) {
      late = LearnFromAttempt(seconds);
    }
    level.usual = Follow(level.usual, seconds);
    return late;
  }
  return false;
}

bool Pace::IsLate(size_t level, double seconds) const {
  if (level + 1 == levels_.size()) return false;
  const Level& next = levels_[level + 1];
  double expected = next.usual;
  if (expected == 0) {  // nothing gains more from threads than their number
    expected = std::numeric_limits<double>::infinity();
    for (const Level& known : levels_) {
      if (known.best > 0) expected = std::min(expected, known.best * known.threads / next.threads);
    }
  }
  return seconds > kMargin * expected;
}

void Pace::MoveTo(size_t level) {
  level_ = level;
  levels_[level].late = 0;
  calls_ = 0;
}

bool Pace::LearnHere(double seconds) {
  Level& level = levels_[level_];
  const bool late = IsLate(level_, seconds);
  ++calls_;
  --rest_;
  level.late = (level.late << 1 | static_cast<unsigned>(late)) & 0xff;
  const bool knows_next = level_ + 1 == levels_.size() || levels_[level_ + 1].usual > 0;
  if (std::bitset<8>(level.late).count() >= kTooOften) {
    MoveTo(level_ + 1);
    rest_ = patience_;
    patience_ = std::min(2 * patience_, kLongRest);
  } else if (!knows_next && calls_ == kCallsBeforeLook) {
    MoveTo(level_ + 1);
    rest_ = kCallsOfLook;
  } else if (level_ == 0 && calls_ >= kOnTime) {
    patience_ = kShortRest;
  }
  return late;
}

bool Pace::LearnFromAttempt(double seconds) {
  const double usual = levels_[level_].usual;
  if (seconds < usual) {
    MoveTo(level_ - 1);
    return false;
  }
  const double most = usual > 0 ? std::min<double>(kLongestRest / usual, kLongRest) : kLongRest;
  rest_ = std::max(kShortRest, std::min(patience_, static_cast<int64_t>(most)));
  patience_ = std::min(2 * patience_, kLongRest);
  return true;
}

RunningCall::RunningCall() : number_(++begun) { ++running; }
RunningCall::~RunningCall() { --running; }

void RunningCall::ForgetAll() { running = 0; }

Allowance RunningCall::Allowed() const {
  static Budget budget(GrantOfProcess());
  const Grant& grant = GrantOfProcess();
  Allowance allowed{grant.Threads(), grant.cores};
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

bool RunningCall::IsAlone() const { return running.load() == 1 && begun.load() == number_; }

}  // namespace tvm_byoc_dnnl
