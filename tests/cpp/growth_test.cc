// SPDX-License-Identifier: Apache-2.0
// Caches that grow: which graphs have them, and that one plan serves every length.
#include "common/growth.h"

#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "common/engine.h"
#include "common/region.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

constexpr int64_t kHeads = 2, kWidth = 3;

/// Attention of "n" queries over "p" + "n" keys, which are an output; `more` nodes stand behind.
std::string GraphText(const std::string& bias_shape, const std::string& more) {
  return R"({"format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g", "tensors": [
    {"name": "q", "dtype": "float32", "shape": ["b", 2, "n", 3]},
    {"name": "pk", "dtype": "float32", "shape": ["b", 2, "p", 3]},
    {"name": "pv", "dtype": "float32", "shape": ["b", 2, "p", 3]},
    {"name": "k", "dtype": "float32", "shape": ["b", 2, "n", 3]},
    {"name": "v", "dtype": "float32", "shape": ["b", 2, "n", 3]},
    {"name": "m", "dtype": "float32", "shape": )" +
         bias_shape + R"(},
    {"name": "bias", "dtype": "float32", "shape": )" +
         bias_shape + R"(},
    {"name": "keys", "dtype": "float32", "shape": ["b", 2, ["+", "p", "n"], 3]},
    {"name": "values", "dtype": "float32", "shape": ["b", 2, ["+", "n", "p"], 3]},
    {"name": "y", "dtype": "float32", "shape": ["b", 2, "n", 3]},
    {"name": "z", "dtype": "float32", "shape": ["b", 2, "n", 3]}],
  "inputs": [{"tensor": 0}, {"tensor": 1}, {"tensor": 2}, {"tensor": 3}, {"tensor": 4}, {"tensor": 5}],
  "constants": [], "nodes": [
    {"kind": "eltwise", "attrs": {"alg": "linear", "alpha": 2, "beta": 0}, "inputs": [5], "outputs": [6]},
    {"kind": "concat", "attrs": {"axis": 2}, "inputs": [1, 3], "outputs": [7]},
    {"kind": "concat", "attrs": {"axis": 2}, "inputs": [2, 4], "outputs": [8]},
    {"kind": "attention", "attrs": {"alg": "accurate", "scale": 0.5}, "inputs": [0, 7, 8, 6], "outputs": [9]},
    )" + more +
         R"(], "outputs": [10, 7, 8]})";
}

const char* const kRelu =
    R"({"kind": "eltwise", "attrs": {"alg": "relu", "alpha": 0, "beta": 0}, "inputs": [9], "outputs": [10]})";
const char* const kMask = R"(["b", 1, "n", ["+", "n", "p"]])";  // in another order than "keys"

/// The same by loops, for one batch.
std::vector<float> Attended(const std::vector<float>& q, const std::vector<float>& keys,
                            const std::vector<float>& values, const std::vector<float>& m,
                            int64_t n, int64_t length, int64_t room) {
  std::vector<float> y;
  for (int64_t row = 0; row < kHeads * n; ++row) {
    const int64_t head = row / n;
    std::vector<double> sums(kWidth, 0);
    double total = 0;
    for (int64_t key = 0; key < length; ++key) {
      double score = 2 * m[row % n * length + key];
      for (int64_t i = 0; i < kWidth; ++i)
        score += 0.5 * q[row * kWidth + i] * keys[(head * room + key) * kWidth + i];
      total += std::exp(score);
      for (int64_t i = 0; i < kWidth; ++i)
        sums[i] += std::exp(score) * values[(head * room + key) * kWidth + i];
    }
    for (double sum : sums) y.push_back(static_cast<float>(std::max(0.0, sum / total)));
  }
  return y;
}

std::vector<float> Numbers(int64_t count, int seed) {
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>((i * 7 + seed) % 11) / 5 - 1;
  return numbers;
}

}  // namespace

TEST(CachesAndMasksAreFound) {
  const auto growth = FindGrowth(ParseGraph(GraphText(kMask, kRelu)));
  CHECK(growth.has_value());
  CHECK(growth->caches.size() == 2);
  CHECK(growth->caches[1].input == 2);
  CHECK(growth->caches[1].output == 2);
  CHECK(growth->masks == std::vector<int>{5});
}

TEST(NothingGrowsIfAnythingElseDependsOnTheLength) {
  const std::string sum = R"({"kind": "reduction", "attrs": {"alg": "sum", "p": 0, "epsilon": 0},
      "inputs": [6], "outputs": [11]}, )";
  std::string text = GraphText(kMask, sum + kRelu);
  const std::string z = R"({"name": "z", "dtype": "float32", "shape": ["b", 2, "n", 3]})";
  text.replace(text.find(z), z.size(),
               z + R"(, {"name": "s", "dtype": "float32", "shape": ["b", 1, "n", 1]})");
  CHECK(!FindGrowth(ParseGraph(text)).has_value());
}

TEST(CachesThatRowsArePutInto) {
  auto text = [](const std::string& length, const std::string& ends) {
    return R"({"format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g", "tensors": [
      {"name": "q", "dtype": "float32", "shape": ["b", 2, "n", 3]},
      {"name": "past", "dtype": "float32", "shape": ["b", 2, "p", 3]},
      {"name": "rows", "dtype": "float32", "shape": ["b", 2, "n", 3]},
      {"name": "starts", "dtype": "int64", "shape": ["b"]},
      {"name": "ends", "dtype": "int64", "shape": ["b"]},
      {"name": "cache", "dtype": "float32", "shape": ["b", 2, )" +
           length + R"(, 3]},
      {"name": "y", "dtype": "float32", "shape": ["b", 2, "n", 3]}],
    "inputs": [{"tensor": 0}, {"tensor": 1}, {"tensor": 2}, {"tensor": 3}, {"tensor": 4},
               {"shape": ["t"]}],
    "constants": [], "nodes": [
      {"kind": "append", "attrs": {}, "inputs": [1, 2, 3, )" +
           ends + R"(], "outputs": [5]},
      {"kind": "cached_attention", "attrs": {"scale": 0.5, "window": 0, "softcap": 0},
       "inputs": [0, 5, 5, 3], "outputs": [6]}],
    "outputs": [6, 5]})";
  };
  for (const char* length : {R"(["max", "p", "t"])", R"(["max", "t", "p"])", R"("p")"}) {
    const Graph graph = ParseGraph(text(length, "4"));
    const auto growth = FindGrowth(graph);
    CHECK(growth.has_value());
    CHECK(growth->caches[0].input == 1);
    CHECK(growth->caches[0].starts == 3);
    CHECK(growth->caches[0].ends == 4);
    std::vector<int64_t> symbols(graph.symbols.size(), 5);
    symbols = AtCapacity(*growth, symbols, 64);
    CHECK(Evaluate(growth->length, symbols) == 64);
  }
  CHECK(!FindGrowth(ParseGraph(text(R"(["max", "p", ["*", "t", 2]])", "4"))).has_value());
}

TEST(CapacityDoubles) {
  CHECK(CacheCapacity(1) == 64);
  CHECK(CacheCapacity(64) == 64);
  CHECK(CacheCapacity(65) == 128);
}

TEST(OnePlanServesEveryLength) {
  const std::unique_ptr<const Engine> engine(TvmByocEngine());
  Region region(*engine, GraphText(kMask, kRelu));
  if (!region.growth()) return;  // neither AVX2 nor AVX-512
  region.Initialise({});
  constexpr int64_t kRoom = 64;
  std::vector<float> keys(kHeads * kRoom * kWidth, NAN), values = keys;
  int64_t length = 0;
  std::shared_ptr<const Plan> first;
  for (int64_t n : {3, 1, 1, 1, 1}) {
    const std::vector<float> q = Numbers(kHeads * n * kWidth, 1);
    std::vector<float> k = Numbers(kHeads * n * kWidth, 2), v = Numbers(kHeads * n * kWidth, 3);
    const int64_t past = length;
    length += n;
    std::vector<float> m = Numbers(n * length, 4), y(kHeads * n * kWidth);
    auto plan = region.GrowingPlanFor(BindSymbols(region.graph(), {{1, kHeads, n, kWidth},
                                                                   {1, kHeads, past, kWidth},
                                                                   {1, kHeads, past, kWidth},
                                                                   {1, kHeads, n, kWidth},
                                                                   {1, kHeads, n, kWidth},
                                                                   {1, 1, n, length}}),
                                      kRoom);
    if (n == 1 && first != nullptr) CHECK(plan == first);
    if (n == 1) first = plan;
    plan->Run(
        {const_cast<float*>(q.data()), nullptr, nullptr, k.data(), v.data(), m.data(), &length},
        {y.data(), keys.data(), values.data()});
    const std::vector<float> expected = Attended(q, keys, values, m, n, length, kRoom);
    for (size_t i = 0; i < y.size(); ++i) CHECK(std::fabs(y[i] - expected[i]) < 1e-5f);
    CHECK(keys[(kRoom + past) * kWidth] == k[n * kWidth]);  // of the second head
  }
}
