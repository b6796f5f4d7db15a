// SPDX-License-Identifier: Apache-2.0
// The time on the cores that the control group of a process grants it.
#ifndef TVM_BYOC_DNNL_COMMON_GRANT_H_
#define TVM_BYOC_DNNL_COMMON_GRANT_H_

#include <limits>
#include <mutex>
#include <string>

namespace tvm_byoc_dnnl {

/// The time that a control group grants: so many seconds in each second, counted by period. A group
/// that has used the time of a period stands still until the next one begins.
struct Grant {
  double cores = std::numeric_limits<double>::infinity();
  double period = 0;

  int Threads() const;  // the cores, rounded up; a very large number where there is no limit
};

/// The grant of this process.
const Grant& GrantOfProcess();

/// That of a process with this list of `groups` (/proc/self/cgroup), whose files lie below `root`:
/// the least of its groups and those around them.
Grant FindGrant(const std::string& groups, const std::string& root);

/// Foresees when a group stands still. One that never uses more than a period's grant does not.
class Budget {
 public:
  explicit Budget(const Grant& grant) : grant_(grant) {}

  /// Seconds until a process is granted what it uses: it has used `used` seconds of its cores until
  /// `now` (also in seconds). 0 while another thread asks, or was asking when this process was
  /// forked.
  double Debt(double now, double used);

 private:
  const Grant grant_;
  std::mutex mutex_;
  bool begun_ = false;
  double now_ = 0, used_ = 0;
  double left_ = 0;  // seconds of a core
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_GRANT_H_
