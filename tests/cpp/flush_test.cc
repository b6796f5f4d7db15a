// SPDX-License-Identifier: Apache-2.0
// Weights that are nothing beside the others become zero, and no other number changes.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/byoc_copy.h"

namespace {

/// The numbers afterwards.
std::vector<float> Flushed(std::vector<float> numbers, int threads = 1) {
  const int64_t count = static_cast<int64_t>(numbers.size());
  void* data[] = {numbers.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_flush(&count, data, nullptr, threads, message) == BYOC_OK);
  return numbers;
}

const float kDenormal = std::numeric_limits<float>::denorm_min();
const float kTiny = std::ldexp(1.f, -100), kBeside = std::ldexp(1.f, -40);

TEST(tiny_numbers_become_zero) {
  const std::vector<float> before = {kDenormal, -1e-38f, 0, -kTiny / 2, kTiny, -kTiny, 1e-3f, -2};
  const std::vector<float> after = {0, 0, 0, 0, kTiny, -kTiny, 1e-3f, -2};
  CHECK(Flushed(before) == after);
}

TEST(they_stay_where_all_are_small) {
  const float below = std::nextafter(kBeside, 0.f);
  const std::vector<float> small = {kDenormal, -kTiny / 4, below};
  CHECK(Flushed(small) == small);
  CHECK(Flushed({kDenormal, -kBeside}) == std::vector<float>({0, -kBeside}));
}

TEST(infinities_and_nan_stay) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> result = Flushed({-infinity, kDenormal, std::nanf("")});
  CHECK(result[0] == -infinity);
  CHECK(result[1] == 0);
  CHECK(std::isnan(result[2]));
}

TEST(nothing_is_nothing) { CHECK(Flushed({}).empty()); }

TEST(many_numbers_by_threads) {
  for (size_t at : {size_t{0}, size_t{1} << 18, (size_t{1} << 19) - 1}) {
    std::vector<float> numbers(size_t{1} << 19, 0.5f);
    numbers[at] = kDenormal;
    const std::vector<float> result = Flushed(numbers, 3);
    numbers[at] = 0;
    CHECK(result == numbers);
  }
}

}  // namespace
