// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>

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
constexpr double kTiny = 1e-4;          // seconds on one thread: about what it takes to wake others
constexpr double kShortestCall = 1e-9;  // seconds

std::atomic<int64_t> running{0}, begun{0}, crowd{1};

/// Follows the times of a level, a slow call by little: the first one is slow, others may be late.
double Follow(double usual, double seconds) {
  if (usual == 0 || seconds < usual) return seconds;
  return usual + std::min(seconds - usual, usual / 4) / 4;
}

/// The cores that this thread may use, by its affinity and its control group.
int CoresOfThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::min(cores, GrantedCores());
}

}  // namespace

void Pace::Begin(int all) {
  for (int threads = all; threads > 1; threads /= 2) levels_.push_back({threads});
  levels_.push_back({1});
  if (expected_ * all < kTiny) {
    level_ = levels_.size() - 1;
    rest_ = kCallsBeforeLook;
  }
}

int Pace::Next(int all, const Allowance& allowed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (levels_.empty()) Begin(all);
  size_t level = level_ > 0 && rest_ <= 0 ? level_ - 1 : level_;
  while (levels_[level].threads > std::max(1, allowed.threads)) ++level;
  const Level& own = levels_[level];
  if (level + 1 == levels_.size()) return own.threads;
  const Level& next = levels_[level + 1];
  const bool looks = own.calls >= kCallsBeforeLook && allowed.alone &&
                     next.calls < kCallsOfLook + own.calls / kCallsBetweenLooks;
  return looks ? next.threads : own.threads;
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

RunningCall::RunningCall() {
  number_ = ++begun;
  together_ = ++running;
  if (crowd < together_) crowd = together_;
}

RunningCall::~RunningCall() {
  if (IsAlone()) crowd = 1;
  --running;
}

void RunningCall::ForgetAll() {
  running = 0;
  crowd = 1;
}

Allowance RunningCall::Allowed() const {
  Allowance allowed{GrantedCores(), IsAlone()};
  const auto calls = static_cast<int>(std::max(crowd.load(), running.load()));
  if (calls > 1) allowed.threads = std::max(1, CoresOfThread() / calls);
  return allowed;
}

bool RunningCall::IsAlone() const {
  return together_ == 1 && running.load() == 1 && begun.load() == number_;
}

namespace {

/// The number in a file; 0 where there is none, or the word "max".
double NumberIn(std::istream& file) {
  std::string word;
  file >> word;
  return std::strtod(word.c_str(), nullptr);
}

/// The cores that one control group grants.
int CoresOfGroup(const std::string& folder) {
  constexpr double kAny = std::numeric_limits<int>::max();
  std::ifstream both(folder + "/cpu.max");  // version 2: "150000 100000"
  double quota = NumberIn(both), period = NumberIn(both);
  if (!both) {
    std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
    quota = NumberIn(first);
    period = NumberIn(second);
  }
  const double cores = quota > 0 && period > 0 ? std::ceil(quota / period) : kAny;
  return static_cast<int>(std::min(cores, kAny));
}

}  // namespace

int GrantedCores() {
  static const int cores = FindGrantedCores("/proc/self/cgroup", "/sys/fs/cgroup");
  return cores;
}

int FindGrantedCores(const std::string& groups, const std::string& root) {
  int least = std::numeric_limits<int>::max();
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/a/b", or "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos)
      continue;
    const std::string mounted = controllers.empty() ? root : root + "/" + controllers;
    for (std::string group = line.substr(second + 1);; group.erase(group.rfind('/'))) {
      least = std::min(least, CoresOfGroup(mounted + group));
      if (group.find('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace tvm_byoc_dnnl
