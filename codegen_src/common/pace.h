// SPDX-License-Identifier: Apache-2.0
// How many threads the calls of a plan use in the company that they have.
#ifndef TVM_BYOC_DNNL_COMMON_PACE_H_
#define TVM_BYOC_DNNL_COMMON_PACE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tvm_byoc_dnnl {

/// What a call may use.
struct Allowance {
  int threads = 1;
  bool alone = true;   // no other call runs in this process: what this one takes is learned
  double cores = 1;    // that the control group grants
  double pause = 0;    // seconds for which it may stop a call that uses more than these; 0 for none
  double between = 0;  // seconds in which it does not, before and after
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
///   threads are faster.
/// * Turn: a call that the control group may stop for a while uses the next level if that takes
///   less time. Where fewer than one call of twenty is stopped, none does.
///
/// It knows no clock: times come in by Learn.
class Pace {
 public:
  /// The threads of the next call: `all`, or a level with fewer. A plan is for one number of all
  /// threads.
  int Threads(int all, const Allowance& allowed);

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

  bool IsForNext(size_t level, const Allowance& allowed) const;
  void StayAt(size_t level, double recent);

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

  /// The calls that run now share the cores of the process.
  Allowance Allowed() const;

  /// Whether no other call has run beside this one.
  bool IsAlone() const;

  /// For the child of a fork, in which no call runs.
  static void ForgetAll();

 private:
  const int64_t number_;
  const bool began_alone_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_PACE_H_
