// SPDX-License-Identifier: Apache-2.0
// Batch normalisation against float64: parts whose channels fill vectors and parts that do not, one
// thread and several, each instruction set that this CPU has. An unreadable page lies behind every
// buffer.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/byoc_batch_norm.h"
#include "norm_check.h"

namespace {

/// Normalises the parts, in guarded memory of the result.
void Call(Parts* parts, byoc_isa isa, int threads, Guarded* result) {
  const std::vector<int64_t> params = parts->Params(isa, threads);
  std::vector<void*> data = parts->Data();
  data.push_back(result->data());
  Guarded scratch(static_cast<size_t>(threads * byoc_batch_norm_scales(parts->channels)), 64);
  char message[BYOC_ERROR_BYTES];
  CHECK_EQUAL(byoc_batch_norm(params.data(), data.data(), scratch.data(), threads, message),
              BYOC_OK);
}

void Check(const std::vector<int64_t>& channels, int64_t pixels, bool has_relu, int threads) {
  for (byoc_isa isa : InstructionSets()) {
    Parts parts(channels, pixels, has_relu);
    const int64_t all = parts.channels;
    Guarded result(static_cast<size_t>(all * pixels));
    Call(&parts, isa, threads, &result);
    double error = 0;
    for (int64_t i = 0; i < all * pixels; ++i) {
      error = Worse(error, std::abs(result.data()[i] - parts.Exact(i / all, i % all)));
    }
    CHECK(error <= 4e-6);  // results are up to 60; float32 has 24 bits
  }
}

TEST(every_tail_of_the_channels) {
  for (int64_t channels = 1; channels <= 35; ++channels) {
    for (bool has_relu : {false, true}) Check({channels}, 3, has_relu, 1);
  }
}

TEST(parts_of_all_widths) {
  for (int64_t first : {1, 8, 16, 17, 32}) {
    for (int64_t second : {1, 7, 15, 16, 31}) Check({first, second, 32, 5}, 7, true, 1);
  }
}

TEST(many_parts_and_threads) {
  const std::vector<int64_t> channels(50, 32);
  for (int threads : {1, 2, 3}) Check(channels, 49, true, threads);
  Check({64, 3}, 1, false, 4);  // fewer pixels than threads
  Check({5}, 0, false, 2);
}

TEST(numbers_that_are_not_finite) {
  const float infinite = std::numeric_limits<float>::infinity();
  for (byoc_isa isa : InstructionSets()) {
    Parts parts({4}, 1, /*has_relu=*/true);
    Guarded result(4);
    float* x = parts.sources[0]->data();
    x[0] = std::nanf("");
    x[1] = infinite;
    x[2] = -infinite;
    std::fill(parts.gamma.data(), parts.gamma.data() + 4, 1.f);
    Call(&parts, isa, 1, &result);
    CHECK(std::isnan(result.data()[0]));
    CHECK_EQUAL(result.data()[1], infinite);
    CHECK_EQUAL(result.data()[2], 0.f);
  }
}

}  // namespace
