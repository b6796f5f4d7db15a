// SPDX-License-Identifier: Apache-2.0
// How many threads the calls of a plan use in the company that they have.
#ifndef TVM_BYOC_DNNL_COMMON_PACE_H_
#define TVM_BYOC_DNNL_COMMON_PACE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tvm_byoc_dnnl {

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
class Pace {
 public:
  /// The threads of the next call: `all`, or the first level that has no more than `at_most`. A
  /// plan is for one number of all threads.
  int Threads(int all, int at_most);

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

  /// As many threads as this call may use: the calls that run now share the cores of the process,
  /// and none uses more than the control group grants.
  int MostThreads() const;

  /// Whether no other call has run since this one began.
  bool IsAlone() const;

  /// For the child of a fork, in which no call runs.
  static void ForgetAll();

 private:
  const int64_t number_;
};

/// The cores that the control group of this process grants it, rounded up; a very large number
/// where there is no limit.
int GrantedCores();

/// The same for a process with this list of `groups` (/proc/self/cgroup), whose files lie below
/// `root`: the least that one of its groups and those around them grant.
int GrantedCores(const std::string& groups, const std::string& root);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_PACE_H_
