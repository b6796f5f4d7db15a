// SPDX-License-Identifier: Apache-2.0
// Many threads on one region, every result checked. Under ThreadSanitizer: `make test-tsan`.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>

#include "check.h"
#include "common/engine.h"
#include "common/region.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

const Engine& Dnnl() {
  static const std::unique_ptr<const Engine> engine(TvmByocEngine());
  return *engine;
}

constexpr int kThreads = 8;
constexpr int64_t kInner = 24, kOuter = 40;

/// relu(x [rows, 24] @ w [24, 40] + b [40]): packed weights, and a constant that a call reads.
std::string GraphOf(const std::string& rows) {
  return R"({"format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g",
    "tensors": [{"name": "x", "dtype": "float32", "shape": [)" +
         rows + R"(, 24]}, {"name": "w", "dtype": "float32", "shape": [24, 40]},
                {"name": "b", "dtype": "float32", "shape": [1, 40]},
                {"name": "y", "dtype": "float32", "shape": [)" +
         rows + R"(, 40]}],
    "inputs": [{"tensor": 0}],
    "constants": [{"tensor": 1, "name": "w"}, {"tensor": 2, "name": "b"}],
    "nodes": [{"kind": "matmul", "inputs": [0, 1, 2], "outputs": [3],
               "post_ops": [{"kind": "eltwise", "alg": "relu", "alpha": 0.0, "beta": 0.0}]}],
    "outputs": [3]})";
}

std::chrono::duration<double> Duration() {
  const char* seconds = std::getenv("STRESS_SECONDS");
  return std::chrono::duration<double>(seconds == nullptr ? 0.5 : std::atof(seconds));
}

/// Weights that are all `value`, so that a result says whose they were.
std::vector<ConstantData> Constants(float value) {
  auto w = std::make_shared<std::vector<float>>(kInner * kOuter, value);
  auto b = std::make_shared<std::vector<float>>(kOuter, 0.5f);
  return {{w->data(), w}, {b->data(), b}};
}

/// One call with x = 1; the value that all results have, NaN when they differ.
float Call(const Plan& plan, int64_t rows) {
  std::vector<float> x(rows * kInner, 1), y(rows * kOuter, -1);
  plan.Run({x.data()}, {y.data()});
  for (float value : y) {
    if (value != y[0]) return std::nanf("");
  }
  return y[0];
}

/// `body(thread, iteration)` says whether it was right, in all threads until the time is over.
void Stress(const std::function<bool(int, int)>& body) {
  const auto end = std::chrono::steady_clock::now() + Duration();
  std::atomic<int> wrong{0}, calls{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; std::chrono::steady_clock::now() < end; ++i, ++calls) wrong += !body(t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
  CHECK(calls > kThreads);
}

}  // namespace

TEST(ThreadsShareAPlan) {
  Region region(Dnnl(), GraphOf("5"));
  region.Initialise(Constants(1));
  Stress([&](int, int) { return Call(*region.StaticPlan(), 5) == kInner + 0.5f; });
}

TEST(PlansComeAndGo) {  // more shapes than are cached
  Region region(Dnnl(), GraphOf("\"n\""));
  region.Initialise(Constants(1));
  Stress([&](int thread, int i) {
    const int64_t rows = 1 + (7 * thread + i) % 40;
    return Call(*region.PlanFor({{rows, kInner}}), rows) == kInner + 0.5f;
  });
}

TEST(ConstantsAreReplacedUnderCalls) {
  for (const char* rows : {"3", "\"n\""}) {
    Region region(Dnnl(), GraphOf(rows));
    region.Initialise(Constants(1));
    Stress([&](int thread, int i) {
      if (thread == 0 && i % 4 == 0) {
        region.Initialise(Constants(static_cast<float>(1 + i % 3)));
        return true;
      }
      const float got =
          Call(rows[0] == '3' ? *region.StaticPlan() : *region.PlanFor({{3, kInner}}), 3);
      return got == kInner + 0.5f || got == 2 * kInner + 0.5f || got == 3 * kInner + 0.5f;
    });
  }
}
