// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/byoc_copy.h"

namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

/// Rows of a source of 2 x 3 slices with `bytes` each, which are found by these indices.
template <typename Index>
std::vector<int> Gathered(int64_t mode, const std::vector<Index>& indices, int64_t bytes,
                          int threads, std::string* message) {
  std::vector<char> source(2 * 3 * bytes), result(2 * indices.size() * bytes, 99);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i / bytes);
  const int64_t params[] = {
      mode, 2, 3, bytes, static_cast<int64_t>(indices.size()), static_cast<int64_t>(sizeof(Index))};
  void* data[] = {source.data(), const_cast<Index*>(indices.data()), result.data()};
  char error[BYOC_ERROR_BYTES] = "";
  if (byoc_gather(params, data, nullptr, threads, error) != BYOC_OK) *message = error;
  std::vector<int> slices;
  for (size_t i = 0; i < result.size(); i += bytes) slices.push_back(result[i]);
  return slices;
}

}  // namespace

TEST(EveryIndexMeansASliceThatThereIs) {
  const std::vector<int64_t> indices = {0, 2, -1, -3, -4, 3, 4, kLeast, kMost};
  std::string message;
  for (int64_t bytes : {1, 2, 3, 4, 8, 40000}) {
    for (int threads : {1, 3}) {
      auto gathered = [&](int64_t mode) {
        return Gathered(mode, indices, bytes, threads, &message);
      };
      CHECK(gathered(BYOC_GATHER_FROM_END) ==
            std::vector<int>({0, 2, 2, 0, 0, 2, 2, 0, 2, 3, 5, 5, 3, 3, 5, 5, 3, 5}));
      CHECK(gathered(BYOC_GATHER_CLIP) ==
            std::vector<int>({0, 2, 0, 0, 0, 2, 2, 0, 2, 3, 5, 3, 3, 3, 5, 5, 3, 5}));
      CHECK(gathered(BYOC_GATHER_WRAP) ==
            std::vector<int>({0, 2, 2, 0, 2, 0, 1, 1, 1, 3, 5, 5, 3, 5, 3, 4, 4, 4}));
      CHECK_EQUAL(message, "");
    }
  }
}

TEST(CheckedIndicesAreRefused) {
  std::string message;
  CHECK(Gathered<int32_t>(BYOC_GATHER_CHECKED, {2, 0}, 4, 1, &message) ==
        std::vector<int>({2, 0, 5, 3}));
  CHECK_EQUAL(message, "");
  for (int32_t index : {-1, 3, std::numeric_limits<int32_t>::min()}) {
    for (int threads : {1, 3}) {
      Gathered<int32_t>(BYOC_GATHER_CHECKED, {2, index}, 40000, threads, &message);
      CHECK_EQUAL(message, "gather: index " + std::to_string(index) +
                               " is out of range, the axis has 3 elements");
    }
  }
}
