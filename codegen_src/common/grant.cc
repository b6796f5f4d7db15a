// SPDX-License-Identifier: Apache-2.0
#include "common/grant.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

namespace tvm_byoc_dnnl {
namespace {

constexpr double kSaved = 0.1;  // of a period's grant: what a process may use more for a while

/// The number in a file; 0 where there is none, or the word "max".
double NumberIn(std::istream& file) {
  std::string word;
  file >> word;
  return std::strtod(word.c_str(), nullptr);
}

/// What one control group grants.
Grant GrantOf(const std::string& folder) {
  std::ifstream both(folder + "/cpu.max");  // version 2: "150000 100000"
  double quota = NumberIn(both), period = NumberIn(both);
  if (!both) {
    std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
    quota = NumberIn(first);
    period = NumberIn(second);
  }
  return quota > 0 && period > 0 ? Grant{quota / period, period * 1e-6} : Grant{};
}

}  // namespace

int Grant::Threads() const {
  const double most = std::numeric_limits<int>::max();
  return std::max(1, static_cast<int>(std::min(std::ceil(cores), most)));
}

const Grant& GrantOfProcess() {
  static const Grant grant = FindGrant("/proc/self/cgroup", "/sys/fs/cgroup");
  return grant;
}

Grant FindGrant(const std::string& groups, const std::string& root) {
  Grant least;
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/a/b", or "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos)
      continue;
    const std::string mounted = controllers.empty() ? root : root + "/" + controllers;
    for (std::string group = line.substr(second + 1);; group.erase(group.rfind('/'))) {
      if (const Grant grant = GrantOf(mounted + group); grant.cores < least.cores) least = grant;
      if (group.find('/') == std::string::npos) break;
    }
  }
  return least;
}

double Budget::Debt(double now, double used) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  const double whole = grant_.cores * grant_.period;
  if (begun_) left_ += (now - now_) * grant_.cores - (used - used_);
  left_ = std::min(std::max(left_, -whole), kSaved * whole);
  if (!begun_) left_ = kSaved * whole;
  begun_ = true;
  now_ = now;
  used_ = used;
  return std::max(0.0, -left_ / grant_.cores);
}

}  // namespace tvm_byoc_dnnl
