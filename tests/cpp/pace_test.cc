// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "common/grant.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

constexpr int kAny = std::numeric_limits<int>::max();
const Allowance kAll = {kAny, kAny};

/// Threads -> how many of so many calls had them. `seconds`: what a call takes, by its threads.
std::map<int, int> Calls(Pace* pace, int all, int count,
                         const std::function<double(int threads)>& seconds) {
  std::map<int, int> used;
  for (int i = 0; i < count; ++i) {
    const int threads = pace->Threads(all, kAll);
    ++used[threads];
    pace->Learn(threads, seconds(threads));
  }
  return used;
}

double Alone(int threads) { return 0.1 / threads; }
/// One thread shares its core: every step waits a time slice for it, unless it is not used.
double Crowded(int threads) { return threads == 1 ? 0.1 : 0.4; }

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/pace_test_XXXXXX";
    path_ = mkdtemp(path);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST(CallsAloneUseAllThreadsButForOneLook) {
  for (int all : {2, 3, 8}) {
    Pace pace;
    CHECK_EQUAL(Calls(&pace, all, 8, Alone)[all], 8);
    CHECK_EQUAL(Calls(&pace, all, 2, Alone)[all / 2], 2);
    CHECK_EQUAL(Calls(&pace, all, 1000, Alone)[all], 1000);
  }
  Pace single;
  CHECK_EQUAL(Calls(&single, 1, 1000, Alone)[1], 1000);
}

TEST(APlanThatAlwaysHadCompanyLearnsThatFewerThreadsAreFaster) {
  Pace pace;
  Calls(&pace, 2, 11, Crowded);  // the look, and an attempt
  CHECK_EQUAL(Calls(&pace, 2, 32, Crowded)[1], 32);
}

TEST(OneLateCallNowAndThenChangesNothing) {
  Pace pace;
  Calls(&pace, 2, 20, Alone);
  int call = 0;
  const auto used =
      Calls(&pace, 2, 1000, [&](int threads) { return ++call % 9 == 0 ? 10.0 : Alone(threads); });
  CHECK_EQUAL(used.at(2), 1000);
}

TEST(CallsInCompanyUseFewerThreadsAndFewAttempts) {
  Pace pace;
  Calls(&pace, 2, 20, Alone);
  CHECK_EQUAL(Calls(&pace, 2, 60, Crowded)[2], 3);        // two late ones and an attempt
  CHECK(Calls(&pace, 2, 2000, Crowded)[2] <= 2000 / 32);  // fewer than one call of twenty
}

TEST(AttemptsAreFewerTheLongerTheCompanyStays) {
  Pace pace;
  const auto fast = [](int threads) { return Crowded(threads) / 1000; };
  Calls(&pace, 2, 4000, fast);
  CHECK(Calls(&pace, 2, 4000, fast)[2] <= 5);
}

TEST(WhenTheCompanyLeavesAllThreadsAreUsedAgain) {
  Pace pace;
  Calls(&pace, 2, 20, Alone);
  Calls(&pace, 2, 100, Crowded);
  Calls(&pace, 2, 70, Alone);
  CHECK_EQUAL(Calls(&pace, 2, 500, Alone)[2], 500);
}

TEST(SlowCallsTryAgainWithinSeconds) {
  Pace pace;
  Calls(&pace, 2, 4000, Crowded);            // attempts in vain
  CHECK(Calls(&pace, 2, 32, Alone)[2] > 0);  // 3 s of 0.1 s each
}

TEST(EachLevelHasHalfTheThreads) {
  Pace pace;
  Calls(&pace, 6, 20, Alone);
  const auto used = Calls(&pace, 6, 200, Crowded);
  for (const auto& [threads, count] : used) {
    CHECK(threads == 6 || threads == 3 || threads == 1);
    CHECK(threads == 1 || count < 20);
  }
}

TEST(ThreadsThatAreFasterAreKeptThoughOthersAreLate) {
  Pace pace;
  Calls(&pace, 4, 20, Alone);
  // half of the speed is lost, but two threads would be no faster
  const auto used = Calls(&pace, 4, 500, [](int threads) { return threads == 4 ? 0.05 : 0.1; });
  CHECK_EQUAL(used.at(4), 500);
}

TEST(APlanLooksWhetherOneThreadIsFaster) {
  for (const double one : {1e-4, 4e-4}) {  // two take 2e-4
    Pace pace;
    const auto seconds = [&](int threads) { return threads == 1 ? one : 2e-4; };
    Calls(&pace, 2, 50, seconds);
    const auto used = Calls(&pace, 2, 500, seconds);
    CHECK(used.at(one < 2e-4 ? 1 : 2) >= 490);
  }
}

TEST(NoMoreThreadsThanAllowed) {
  Pace pace;
  CHECK_EQUAL(pace.Threads(8, {8, kAny}), 8);
  CHECK_EQUAL(pace.Threads(8, {7, kAny}), 4);
  CHECK_EQUAL(pace.Threads(8, {3, kAny}), 2);
  CHECK_EQUAL(pace.Threads(8, {0, kAny}), 1);
  Pace single;
  CHECK_EQUAL(single.Threads(1, {4, kAny}), 1);
  single.Learn(1, 1.0);
}

TEST(ABudgetIsSpentByWhatIsMoreThanGranted) {
  Budget budget({1.5, 0.1});
  CHECK(!budget.IsSpent(0, 7));      // what was before does not count
  CHECK(!budget.IsSpent(1, 8.5));    // as much as granted
  CHECK(!budget.IsSpent(2, 10.01));  // 10 ms more, of 15 ms that are saved
  CHECK(budget.IsSpent(3, 11.52));   // 20 ms more
  CHECK(budget.IsSpent(3, 11.52));
  CHECK(!budget.IsSpent(4, 12.5));
  CHECK(!budget.IsSpent(100, 12.5));  // a long rest saves no more
  CHECK(budget.IsSpent(100, 12.52));
  CHECK(budget.IsSpent(101, 1000));
  CHECK(!budget.IsSpent(101.2, 1000));  // and debts are paid within two periods
}

TEST(CallsUnderAQuotaTakeTurnsWhereThatIsFasterThanAPause) {
  const Grant grant{1.5, 0.1};
  struct Row {
    double two, one;   // seconds of a call on so many threads
    int wide, narrow;  // at least, of 1000 calls
  };
  const Row rows[] = {{0.010, 0.019, 600, 300},  // two of three
                      {0.095, 0.190, 1000, 0},   // a pause costs less than one thread
                      {0.003, 0.006, 1000, 0},   // one call of 25 is stopped
                      {0.010, 0.009, 0, 900}};   // one thread is faster anyway
  for (const Row& row : rows) {
    Pace pace;
    Budget budget(grant);
    double now = 0, used = 0;
    std::map<int, int> calls;
    for (int i = 0; i < 1100; ++i) {
      Allowance allowed{2, grant.cores};
      if (budget.IsSpent(now, used)) allowed = {2, grant.cores, 0.025, 0.075};
      const int threads = pace.Threads(2, allowed);
      const double seconds = threads == 2 ? row.two : row.one;
      pace.Learn(threads, seconds);
      now += seconds;
      used += threads * seconds;
      if (i >= 100) ++calls[threads];
      if (row.narrow > 0) CHECK(used <= grant.cores * now + 0.2);
    }
    CHECK(calls[2] >= row.wide);
    CHECK(calls[1] >= row.narrow);
  }
}

TEST(RunningCallsShareTheCores) {
  const int alone = [] { return RunningCall().Allowed().threads; }();
  CHECK_EQUAL(alone, GrantOfProcess().Threads());
  std::vector<std::unique_ptr<RunningCall>> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(std::make_unique<RunningCall>());
  CHECK_EQUAL(calls[0]->Allowed().threads, 1);
  CHECK(!calls[0]->IsAlone());
  calls.clear();
  const RunningCall last;
  CHECK(last.IsAlone());
  {
    const RunningCall another;
  }
  CHECK(!last.IsAlone());  // its time says nothing
}

TEST(AForkedChildRunsNoCalls) {
  RunningCall lost;
  RunningCall::ForgetAll();
  {
    const RunningCall first;
    CHECK(first.IsAlone());
  }
  RunningCall balance;  // for the one that was forgotten
}

TEST(TheControlGroupsThatGrantTheLeast) {
  struct Row {
    const char* groups;
    std::vector<std::pair<const char*, const char*>> files;
    int cores;
  };
  const Row rows[] = {
      {"0::/\n", {{"cpu.max", "max 100000\n"}}, kAny},
      {"0::/\n", {{"cpu.max", "150000 100000\n"}}, 2},
      {"0::/\n", {{"cpu.max", "50000 100000\n"}}, 1},
      {"0::/a/b\n", {{"a/cpu.max", "300000 100000"}, {"a/b/cpu.max", "max 100000"}}, 3},
      {"0::/a/b\n", {{"a/cpu.max", "300000 100000"}, {"a/b/cpu.max", "200000 100000"}}, 2},
      {"0::/a\n", {{"b/cpu.max", "100000 100000"}}, kAny},
      {"4:memory:/x\n3:cpu,cpuacct:/a\n",
       {{"cpu,cpuacct/a/cpu.cfs_quota_us", "400000"},
        {"cpu,cpuacct/a/cpu.cfs_period_us", "100000"},
        {"memory/x/cpu.cfs_quota_us", "100000"},
        {"memory/x/cpu.cfs_period_us", "100000"}},
       4},
      {"1:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "-1"}, {"cpu/cpu.cfs_period_us", "100000"}}, kAny},
      {"1:cpuset:/\n0::/\n", {}, kAny},
      {"no list\n", {}, kAny},
      {"", {{"cpu.max", "100000 100000"}}, kAny},
      {"0::/\n", {{"cpu.max", "100000 0"}}, kAny},
      {"0::/\n", {{"cpu.max", "nonsense"}}, kAny},
  };
  for (const Row& row : rows) {
    const Folder folder;
    const std::string groups = folder.Write("groups", row.groups);
    for (const auto& [name, text] : row.files) folder.Write(std::string("root/") + name, text);
    CHECK_EQUAL(FindGrant(groups, folder.path() + "/root").Threads(), row.cores);
  }
}
