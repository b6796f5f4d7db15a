// SPDX-License-Identifier: Apache-2.0
// How many threads the calls of a plan use in the company that they have, and the cores that the
// control group of the process grants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace tvm_byoc_dnnl {

/// The cores that the control group of this process grants it, a part of one counted as a whole
/// one; a very large number where there is no limit.
int GrantedCores();

/// Those of a process with this list of `groups` (/proc/self/cgroup), whose files lie below `root`:
/// the least of its groups and those around them.
int FindGrantedCores(const std::string& groups, const std::string& root);

/// What a call may use.
struct Allowance {
  int threads = 1;
  bool alone = true;  // no other call runs in this process: what this one takes is learned
};

/// Remembers what the calls of one plan took, and says how many threads the next one uses.
///
/// The steps of a plan are divided among its threads beforehand, so every step waits for the last
/// of them. A thread that shares its core with another program comes a time slice late, at every
/// step: the call then takes many times as long as on fewer threads. So a plan has levels: all
/// threads, half of them, a quarter, one. Its calls stay at one level, by what they cost:
///
/// * Down: the recent calls took longer, on average, than those of the next level usually do.
/// * Up: after a rest, one call tries the level before, and it took less time. If it took longer by
///   no more than it takes to wake threads, the next one tries again. An attempt in vain
///   is followed by a rest that is the longer the more time it lost, but at first no longer than
///   twice the one before: most company leaves soon.
/// * Look: after the first eight calls, two use the next level, and one of a thousand later. So a
///   plan that had company from the beginning learns it, and one that is so small that fewer
///   threads are faster. A plan that is expected to be so small begins on one thread.
///
/// It knows no clock: times come in by Learn.
class Pace {
 public:
  /// For a plan whose calls are expected to take at most so many seconds on all threads.
  explicit Pace(double expected = std::numeric_limits<double>::infinity()) : expected_(expected) {}

  double expected() const { return expected_; }

  /// The next call has `all` threads, or a level with fewer. A plan is for one number of all
  /// threads.
  int Next(int all, const Allowance& allowed);

  /// Learns what a call with so many threads took, during which no other call ran in this process.
  /// Returns whether it was late: the next level would have been faster.
  bool Learn(int threads, double seconds);

 private:
  static constexpr double kShortRest = 16;  // calls

  struct Level {
    int threads;
    int64_t calls = 0;
    double usual = 0;  // seconds
  };

  void Begin(int all);
  void StayAt(size_t level, double recent);

  const double expected_;
  std::mutex mutex_;
  std::vector<Level> levels_;
  size_t level_ = 0;          // of the calls
  double recent_ = 0;         // mean of these, as a multiple of what those of the next level take
  bool is_waking_ = false;    // whether the last attempt may have been slow because threads slept
  double rest_ = 0;           // calls until the level before is tried again
  double wait_ = kShortRest;  // the most of it, doubled by each attempt in vain
};

/// Counts the calls that run in this process at the same time.
class RunningCall {
 public:
  RunningCall();
  ~RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  /// The calls that run now share the cores of the process, or those that did until one ran alone:
  /// a caller that is between two calls will soon be back.
  Allowance Allowed() const;

  /// Whether no other call has run beside this one.
  bool IsAlone() const;

  /// For the child of a fork, in which no call runs.
  static void ForgetAll();

 private:
  int64_t number_, together_;
};

}  // namespace tvm_byoc_dnnl
