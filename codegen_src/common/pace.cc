// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

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

std::atomic<int64_t> running{0}, begun{0};

/// Follows the times of a level, a slow call by little.
double Follow(double usual, double seconds) {
  if (usual == 0) return seconds;
  return seconds < usual ? (usual + seconds) / 2 : usual + std::min(seconds - usual, usual / 4) / 4;
}

/// The number in a file; 0 where there is none, or the word "max".
double NumberIn(std::istream& file) {
  std::string word;
  file >> word;
  return std::strtod(word.c_str(), nullptr);
}

/// Cores that one control group grants; 0 for no limit.
double QuotaOf(const std::string& folder) {
  std::ifstream both(folder + "/cpu.max");  // version 2: "150000 100000"
  double quota = NumberIn(both), period = NumberIn(both);
  if (!both) {
    std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
    quota = NumberIn(first);
    period = NumberIn(second);
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int Pace::Threads(int all, int at_most) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (levels_.empty()) {
    for (int threads = all; threads > 1; threads /= 2) levels_.push_back({threads});
    levels_.push_back({1});
    patience_ = kShortRest;
  }
  size_t level = level_ > 0 && rest_ <= 0 ? level_ - 1 : level_;
  while (levels_[level].threads > std::max(1, at_most)) ++level;
  return levels_[level].threads;
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

int RunningCall::MostThreads() const {
  const auto calls = static_cast<int>(running.load());
  if (calls <= 1) return GrantedCores();
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(cores, GrantedCores()) / calls);
}

bool RunningCall::IsAlone() const { return running.load() == 1 && begun.load() == number_; }

int GrantedCores() {
  static const int cores = GrantedCores("/proc/self/cgroup", "/sys/fs/cgroup");
  return cores;
}

int GrantedCores(const std::string& groups, const std::string& root) {
  double least = std::numeric_limits<int>::max();
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/a/b", or "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos)
      continue;
    const std::string mounted = controllers.empty() ? root : root + "/" + controllers;
    for (std::string group = line.substr(second + 1);; group.erase(group.rfind('/'))) {
      if (const double quota = QuotaOf(mounted + group); quota > 0) least = std::min(least, quota);
      if (group.find('/') == std::string::npos) break;
    }
  }
  return std::max(1, static_cast<int>(std::ceil(least)));
}

}  // namespace tvm_byoc_dnnl
