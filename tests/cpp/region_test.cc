// SPDX-License-Identifier: Apache-2.0
#include "common/region.h"

#include <atomic>
#include <cmath>
#include <thread>

#include "check.h"
#include "common/engine.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

const Engine& Dnnl() {
  static const std::unique_ptr<const Engine> engine(TvmByocEngine());
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

bool RunAndCompare(const Plan& plan, int64_t n, const std::vector<float>& w) {
  std::vector<float> x(n * 3), y(n * 2, -1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  plan.Run({x.data()}, {y.data()});
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < 2; ++column) {
      float sum = 0;
      for (int64_t k = 0; k < 3; ++k) sum += x[row * 3 + k] * w[k * 2 + column];
      if (std::fabs(sum - y[row * 2 + column]) > 1e-4f) return false;
    }
  }
  return true;
}

bool RunAndCompare(Region* region, int64_t n, const std::vector<float>& w) {
  return RunAndCompare(*region->PlanFor({{n, 3}}), n, w);
}

/// x ["n", 3, 4] and y, of this shape, by one node of x and the constant w [3, 4].
std::string OneNode(const std::string& node, const std::string& shape) {
  return R"({"format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g",
    "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3, 4]},
                {"name": "w", "dtype": "float32", "shape": [1, 4, 3]},
                {"name": "y", "dtype": "float32", "shape": )" +
         shape + R"(}], "inputs": [{"tensor": 0}], "constants": [{"tensor": 1, "name": "c"}],
    "nodes": [{)" +
         node + R"(, "outputs": [2]}], "outputs": [2]})";
}

}  // namespace

TEST(BatchesAreFoundWhereSamplesAreIndependent) {
  struct Row {
    const char *node, *shape;
    bool is_batch;
  };
  for (const Row& row :
       {Row{R"("kind": "softmax", "attrs": {"alg": "accurate", "axis": 1}, "inputs": [0])",
            R"(["n", 3, 4])", true},
        Row{R"("kind": "softmax", "attrs": {"alg": "accurate", "axis": 0}, "inputs": [0])",
            R"(["n", 3, 4])", false},
        Row{R"("kind": "matmul", "inputs": [0, 1])", R"(["n", 3, 3])", true},
        Row{R"("kind": "concat", "attrs": {"axis": 1}, "inputs": [0, 0])", R"(["n", 6, 4])", true},
        Row{R"("kind": "concat", "attrs": {"axis": 0}, "inputs": [0, 0])",
            R"([["*", 2, "n"], 3, 4])", false},
        Row{R"("kind": "reshape", "attrs": {}, "inputs": [0])", R"(["n", 12])", true},
        Row{R"("kind": "reshape", "attrs": {}, "inputs": [0])", R"([["*", "n", 3], 4])", false},
        Row{R"("kind": "reshape", "attrs": {}, "inputs": [0])", R"([12, "n"])", false},
        Row{R"("kind": "permute", "attrs": {"axes": [0, 2, 1]}, "inputs": [0])", R"(["n", 4, 3])",
            true},
        Row{R"("kind": "permute", "attrs": {"axes": [1, 0, 2]}, "inputs": [0])", R"([3, "n", 4])",
            false},
        Row{R"("kind": "reduction", "attrs": {"alg": "sum", "p": 0, "epsilon": 0}, "inputs": [0])",
            R"(["n", 1, 4])", true},
        Row{R"("kind": "reduction", "attrs": {"alg": "sum", "p": 0, "epsilon": 0}, "inputs": [0])",
            R"([1, 3, 4])", false}}) {
    CHECK(FindBatch(ParseGraph(OneNode(row.node, row.shape))).has_value() == row.is_batch);
  }
}

TEST(ALargerBatchRunsThePlansOfSmallerOnesOnce) {
  Region region(Dnnl(), kSymbolic);
  auto w = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise(Weights(w));
  CHECK(RunAndCompare(*region.PlanToRun({1}), 1, *w));
  CHECK(RunAndCompare(*region.PlanToRun({4}), 4, *w));
  CHECK(RunAndCompare(*region.PlanToRun({9}), 9, *w));
  CHECK(region.PlanToRun({0})->shapes()[0] == (Dims{0, 3}));  // nothing is smaller
  CHECK_EQUAL(region.counters().parts, 2);                    // 4 and 9
  CHECK_EQUAL(region.counters().made, 2);                     // 1 and 0
  CHECK(RunAndCompare(*region.PlanToRun({9}), 9, *w));        // has its own now
  CHECK(RunAndCompare(*region.PlanToRun({300}), 300, *w));    // in too many parts
  CHECK_EQUAL(region.counters().parts, 2);
  CHECK_EQUAL(region.counters().made, 4);
}

TEST(TheFirstPlanOfABatchBringsThatOfOneSample) {
  Region region(Dnnl(), kSymbolic);
  auto w = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise(Weights(w));
  CHECK(RunAndCompare(*region.PlanToRun({4}), 4, *w));
  CHECK_EQUAL(region.counters().made, 2);
  CHECK(RunAndCompare(*region.PlanToRun({1}), 1, *w));
  CHECK(RunAndCompare(*region.PlanToRun({3}), 3, *w));
  CHECK_EQUAL(region.counters().made, 2);
  CHECK_EQUAL(region.counters().parts, 1);  // 3
  Region exact(Dnnl(), kSymbolic);
  exact.Initialise(Weights(w));
  CHECK(RunAndCompare(*exact.PlanOf({4}), 4, *w));  // as warm_up demands
  CHECK_EQUAL(exact.counters().made, 1);
}

TEST(PlansArePlannedOnceAndCached) {
  Region region(Dnnl(), kSymbolic, /*plan_bytes=*/16 * (96 << 10));
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
  CHECK(counters.bytes <= 16 * (96 << 10));
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
