// SPDX-License-Identifier: Apache-2.0
#include "common/pace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

constexpr int kAny = std::numeric_limits<int>::max();
const Allowance kAll = {kAny};

/// Threads -> how many of so many calls had them. `seconds`: what a call takes, by its threads.
std::map<int, int> Calls(Pace* pace, int all, int count,
                         const std::function<double(int threads)>& seconds) {
  std::map<int, int> used;
  for (int i = 0; i < count; ++i) {
    const int threads = pace->Next(all, kAll);
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
  Calls(&pace, 2, 11, Crowded);  // one behind the look
  CHECK_EQUAL(Calls(&pace, 2, 49, Crowded)[1], 48);
}

TEST(CallsTakeLittleMoreThanOnTheBetterNumberOfThreads) {
  struct Row {
    double two, late, share;  // what a call takes on two threads, a late one, and how many are late
    double one;
    int least, most;  // of 4000 calls, on two threads
  };
  const Row rows[] = {
      {0.5, 10, 0.02, 1, 3900, 3995},   // late now and then
      {0.5, 0.9, 0.9, 1, 3995, 3995},   // mostly late, but sooner than on one thread
      {0.55, 1.3, 0.3, 1, 3900, 3995},  // the second core comes late
      {0.5, 1.6, 0.3, 1, 2600, 3995},   // and later
      {0.5, 2.5, 0.15, 1, 2200, 3995},  // much later, more seldom
      {0.5, 2.5, 0.5, 1, 0, 800},       // so often that one thread is faster
      {0.5, 1.2, 1, 1, 0, 300},         // always late
      {0.5, 4, 1, 1, 0, 125},           // fewer than one call of twenty
      {1, 1, 0, 2, 3995, 3995},         // two threads are faster
      {1, 1, 0, 0.8, 0, 250},           // a small plan
      {1, 1, 0, 0.5, 0, 80},            // and a smaller one
  };
  for (const double unit : {1e-4, 5e-3, 6e-2}) {  // seconds
    for (const Row& row : rows) {
      std::mt19937 random(1);  // NOLINT: the same in each run
      Pace pace;
      double taken = 0, on_two = 0;
      const int wide = Calls(&pace, 2, 4000, [&](int threads) {
        const double two = random() % 1000 < row.share * 1000 ? row.late : row.two;
        const double seconds = threads == 1 ? row.one : two;
        on_two += two;
        taken += seconds;
        return seconds * unit;
      })[2];
      CHECK(taken <= 1.11 * std::min(on_two, 4000 * row.one));
      CHECK(wide >= row.least && wide <= row.most);
    }
  }
}

TEST(ThreeCallsThatTakeManyTimesAsLongAreEnough) {
  Pace pace;
  Calls(&pace, 2, 20, Alone);
  CHECK_EQUAL(Calls(&pace, 2, 60, Crowded)[2], 5);  // and two attempts
}

TEST(WhenTheCompanyLeavesAllThreadsAreUsedAgain) {
  for (const double unit : {1.0, 1e-3}) {  // seconds of ten calls
    Pace pace;
    Calls(&pace, 2, 4000, [&](int threads) { return unit * Crowded(threads); });
    const auto alone = [&](int threads) { return unit * Alone(threads); };
    CHECK(Calls(&pace, 2, unit == 1 ? 33 : 385, alone)[2] > 0);  // 32 calls if these take 2 s
    CHECK_EQUAL(Calls(&pace, 2, 500, alone)[2], 500);
  }
}

TEST(CompanyThatSoonLeavesIsSoonForgotten) {
  Pace pace;
  Calls(&pace, 2, 100, Alone);
  Calls(&pace, 2, 40, Crowded);
  CHECK(Calls(&pace, 2, 40, Alone)[2] >= 25);
}

TEST(ACallThatWakesThreadsDoesNotSayHowFastTheyAre) {
  Pace pace;
  int threads_before = 2, late = 0;
  const auto seconds = [&](int threads) {
    const bool wakes = threads > std::exchange(threads_before, threads);
    if (threads == 1) return 2.5e-4;
    return late-- > 0 ? 1e-3 : wakes ? 3e-4 : 1.3e-4;
  };
  Calls(&pace, 2, 100, seconds);
  late = 3;
  Calls(&pace, 2, 30, seconds);
  CHECK_EQUAL(Calls(&pace, 2, 100, seconds)[2], 100);
}

TEST(NoCallLooksBesideOthersWhoseTimesSayNothing) {
  Pace pace;
  for (int i = 0; i < 8; ++i) pace.Learn(pace.Next(2, kAll), 0.1);
  for (int i = 0; i < 20; ++i) CHECK_EQUAL(pace.Next(2, {kAny, false}), 2);
  CHECK_EQUAL(pace.Next(2, kAll), 1);
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

TEST(ALookThatWasDisturbedDoesNotCountForLong) {
  for (const int disturbed : {1, 2}) {  // of the two calls; the first one is always slow
    Pace pace;
    int on_one = 0;
    const auto seconds = [&](int threads) {
      return threads == 2 ? 2e-4 : ++on_one <= disturbed ? 4e-4 : 1e-4;
    };
    CHECK(Calls(&pace, 2, disturbed == 1 ? 12 : 1040, seconds)[1] > 0);
    CHECK(Calls(&pace, 2, 100, seconds)[1] >= 95);
  }
}

TEST(NoMoreThreadsThanAllowed) {
  Pace pace;
  CHECK_EQUAL(pace.Next(8, {8}), 8);
  CHECK_EQUAL(pace.Next(8, {7}), 4);
  CHECK_EQUAL(pace.Next(8, {3}), 2);
  CHECK_EQUAL(pace.Next(8, {0}), 1);
  Pace single;
  CHECK_EQUAL(single.Next(1, {4}), 1);
  single.Learn(1, 1.0);
}

TEST(APlanThatIsExpectedToBeTinyBeginsOnOneThread) {
  struct Row {
    double expected, two, one;  // seconds
    int begins, ends;           // threads
  };
  const Row rows[] = {{2e-5, 6e-5, 3e-5, 1, 1},   // as expected
                      {2e-5, 1e-3, 2e-3, 1, 2},   // it takes longer than expected
                      {6e-5, 6e-5, 1e-4, 2, 2},   // not tiny
                      {6e-5, 6e-5, 3e-5, 2, 1}};  // one thread is faster all the same
  for (const Row& row : rows) {
    Pace pace(row.expected);
    const auto seconds = [&](int threads) { return threads == 1 ? row.one : row.two; };
    CHECK_EQUAL(Calls(&pace, 2, 8, seconds)[row.begins], 8);
    Calls(&pace, 2, 50, seconds);
    CHECK(Calls(&pace, 2, 200, seconds)[row.ends] >= 190);
  }
}

TEST(RunningCallsShareTheCores) {
  const int alone = [] { return RunningCall().Allowed().threads; }();
  CHECK_EQUAL(alone, GrantedCores());
  std::vector<std::unique_ptr<RunningCall>> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(std::make_unique<RunningCall>());
  CHECK_EQUAL(calls[0]->Allowed().threads, 1);
  CHECK(!calls[0]->IsAlone());
  calls.clear();
  {
    const RunningCall first;  // the others may be between two calls
    CHECK(first.IsAlone());
    CHECK_EQUAL(first.Allowed().threads, 1);
  }
  const RunningCall last;
  CHECK(last.IsAlone());
  CHECK_EQUAL(last.Allowed().threads, alone);
  {
    const RunningCall another;
  }
  CHECK(!last.IsAlone());  // its time says nothing
}

TEST(ACallThatBeganBesideAnotherIsNotAlone) {
  auto first = std::make_unique<RunningCall>();
  const RunningCall second;
  first.reset();
  CHECK(!second.IsAlone());
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
    CHECK_EQUAL(FindGrantedCores(groups, folder.path() + "/root"), row.cores);
  }
}
