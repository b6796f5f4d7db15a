// SPDX-License-Identifier: Apache-2.0
// How many threads the calls of a plan use in the company that they have.
#ifndef TVM_BYOC_DNNL_COMMON_PACE_H_
#define TVM_BYOC_DNNL_COMMON_PACE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tvm_byoc_dnnl {

/// The threads that a call may use.
struct Allowance {
  int threads = 1;
  double cores = 1;    // that the control group grants
  double pause = 0;    // seconds for which it may stop a call that uses more than these; 0 for none
  double between = 0;  // seconds in which it does not, before and after
};

/// Remembers what the calls of one plan took, and says how many threads the next one uses.
///
/// The steps of a plan are divided among its threads beforehand, so every step waits for the last
/// of them. A thread that shares its core with another program comes a time slice late, at every
/// step: the call then takes many times as long as on fewer threads. So a plan has levels: all
/// threads, half of them, a quarter, one. A call is late if the next level would have been faster.
/// When two of eight calls were late, the next level is used for a while; then one call tries the
/// level before, and when that pays, it is used again. Each attempt in vain doubles the while.
///
/// Each plan looks at the next level once, for two calls behind the first eight: so a plan that had
/// company from the beginning learns it, and one that is so small that fewer threads are faster.
///
/// A call that may be stopped for a while uses the next level if that takes less time. Where fewer
/// than one call of twenty is stopped, none does.
class Pace {
 public:
  /// The threads of the next call: `all`, or a level with fewer. A plan is for one number of all
  /// threads.
  int Threads(int all, const Allowance& allowed);

  /// Learns what a call with so many threads took, during which no other call ran in this process.
  /// Returns whether it was late.
  bool Learn(int threads, double seconds);

 private:
  struct Level {
    int threads;
    double best = 0, usual = 0;  // seconds; 0: never used
    unsigned late = 0;           // a bit for each of the last eight calls
  };

  bool IsLate(size_t level, double seconds) const;
  bool IsWorthAPause(size_t level, const Allowance& allowed) const;
  void MoveTo(size_t level);
  bool LearnHere(double seconds);
  bool LearnFromAttempt(double seconds);

  std::mutex mutex_;
  std::vector<Level> levels_;
  size_t level_ = 0;
  int64_t rest_ = 0;      // calls until the level before is tried again
  int64_t patience_ = 0;  // the next rest
  int64_t calls_ = 0;     // at this level since it was entered
};

/// Counts the calls that run in this process at the same time.
class RunningCall {
 public:
  RunningCall();
  ~RunningCall();
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  /// The calls that run now share the cores of the process, and none uses more than the control
  /// group grants, rounded up.
  Allowance Allowed() const;

  /// Whether no other call has run since this one began.
  bool IsAlone() const;

  /// For the child of a fork, in which no call runs.
  static void ForgetAll();

 private:
  const int64_t number_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_PACE_H_
