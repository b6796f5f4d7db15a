// SPDX-License-Identifier: Apache-2.0
#include "common/region.h"

#include <atomic>
#include <cmath>
#include <thread>

#include "check.h"
#include "dnnl/engine.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

const Engine& Dnnl() {
  static const std::unique_ptr<const Engine> engine = NewDnnlEngine();
  return *engine;
}

/// x [n, 3] -> x @ w, with w [3, 2].
constexpr const char* kSymbolic = R"({
  "format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g",
  "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3]},
              {"name": "w", "dtype": "float32", "shape": [3, 2]},
              {"name": "y", "dtype": "float32", "shape": ["n", 2]}],
  "inputs": [{"tensor": 0}], "constants": [{"tensor": 1, "name": "c"}],
  "nodes": [{"kind": "matmul", "inputs": [0, 1], "outputs": [2]}], "outputs": [2]})";

std::vector<ConstantData> Weights(std::shared_ptr<std::vector<float>> values) {
  return {{values->data(), values}};
}

bool RunAndCompare(Region* region, int64_t n, const std::vector<float>& w) {
  std::vector<float> x(n * 3), y(n * 2, -1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  region->PlanFor({{n, 3}})->Run({x.data()}, {y.data()});
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < 2; ++column) {
      float sum = 0;
      for (int64_t k = 0; k < 3; ++k) sum += x[row * 3 + k] * w[k * 2 + column];
      if (std::fabs(sum - y[row * 2 + column]) > 1e-4f) return false;
    }
  }
  return true;
}

}  // namespace

TEST(PlansArePlannedOnceAndCached) {
  Region region(Dnnl(), kSymbolic, /*plan_bytes=*/16 * (32 << 10));
  CHECK(region.PlanFor({{4, 3}}) == nullptr);  // not initialised
  auto w = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise(Weights(w));
  auto plan = region.PlanFor({{4, 3}});
  CHECK(plan == region.PlanFor({{4, 3}}));
  for (int64_t n = 100; n < 100 + 16; ++n) region.PlanFor({{n, 3}});
  CHECK(plan != region.PlanFor({{4, 3}}));  // was the least recently used
  const PlanCounters counters = region.counters();
  CHECK(counters.hits == 1);
  CHECK(counters.made == 18);
  CHECK(counters.plans + counters.dropped == counters.made);
  CHECK(counters.dropped > 0);
  CHECK(counters.bytes <= 16 * (32 << 10));
  CHECK(counters.seconds > 0);
  CHECK(RunAndCompare(&region, 5, *w));
}

TEST(NewConstantsReplaceTheOldOnes) {
  Region region(Dnnl(), kSymbolic);
  std::vector<std::shared_ptr<const Plan>> running;  // plans of old constants may still be in use
  for (float first : {1.0f, 9.0f}) {
    auto w = std::make_shared<std::vector<float>>(std::vector<float>{first, 2, 3, 4, 5, 6});
    region.Initialise(Weights(w));
    CHECK(RunAndCompare(&region, 5, *w));
    running.push_back(region.PlanFor({{5, 3}}));
  }
  CHECK(running[0] != running[1]);
}

TEST(ThreadsShareARegion) {
  Region region(Dnnl(), kSymbolic);
  auto w = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise(Weights(w));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) wrong += !RunAndCompare(&region, 1 + (t + i) % 20, *w);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
}
