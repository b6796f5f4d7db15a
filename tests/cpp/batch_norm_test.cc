// SPDX-License-Identifier: Apache-2.0
// Batch normalisation against float64: parts whose channels fill vectors and parts that do not, one
// thread and several, each instruction set that this CPU has. An unreadable page lies behind every
// buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_batch_norm.h"

namespace {

constexpr double kEpsilon = 1e-3;

struct Run {
  std::vector<std::unique_ptr<Guarded>> parts;
  Guarded gamma, beta, mean, variance, result;

  Run(const std::vector<int64_t>& channels, int64_t all, int64_t pixels)
      : gamma(static_cast<size_t>(all)),
        beta(static_cast<size_t>(all)),
        mean(static_cast<size_t>(all)),
        variance(static_cast<size_t>(all)),
        result(static_cast<size_t>(all * pixels)) {
    std::mt19937 random(3);
    for (int64_t count : channels) {
      parts.push_back(std::make_unique<Guarded>(static_cast<size_t>(count * pixels)));
      Fill({parts.back().get()}, &random);
    }
    Fill({&gamma, &beta, &mean, &variance}, &random);
    for (int64_t k = 0; k < all; ++k) variance.data()[k] = std::abs(variance.data()[k]);
  }

  void Call(byoc_isa isa, const std::vector<int64_t>& channels, int64_t pixels, bool has_relu,
            int threads) {
    std::vector<int64_t> params(sizeof(byoc_batch_norm_params) / sizeof(int64_t));
    byoc_batch_norm_params p{};
    p.isa = isa;
    p.pixels = pixels;
    p.channels = static_cast<int64_t>(gamma.size());
    p.parts = static_cast<int64_t>(channels.size());
    p.has_relu = has_relu;
    p.epsilon = kEpsilon;
    p.threads = threads;
    std::memcpy(params.data(), &p, sizeof(p));
    params.insert(params.end(), channels.begin(), channels.end());
    std::vector<void*> data;
    for (const auto& part : parts) data.push_back(part->data());
    data.insert(data.end(),
                {gamma.data(), beta.data(), mean.data(), variance.data(), result.data()});
    Guarded scratch(static_cast<size_t>(threads * byoc_batch_norm_numbers(&p)), 64);
    char message[BYOC_ERROR_BYTES];
    CHECK_EQUAL(byoc_batch_norm(params.data(), data.data(), scratch.data(), threads, message),
                BYOC_OK);
  }
};

void Check(const std::vector<int64_t>& channels, int64_t pixels, bool has_relu, int threads) {
  int64_t all = 0;
  for (int64_t count : channels) all += count;
  for (byoc_isa isa : InstructionSets()) {
    Run run(channels, all, pixels);
    run.Call(isa, channels, pixels, has_relu, threads);
    double error = 0;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      int64_t at = 0;
      for (size_t part = 0; part < channels.size(); ++part) {
        for (int64_t k = 0; k < channels[part]; ++k, ++at) {
          const double x = run.parts[part]->data()[pixel * channels[part] + k];
          double want = (x - run.mean.data()[at]) / std::sqrt(run.variance.data()[at] + kEpsilon) *
                            run.gamma.data()[at] +
                        run.beta.data()[at];
          if (has_relu) want = std::max(want, 0.0);
          const double difference = std::abs(run.result.data()[pixel * all + at] - want);
          error = Worse(error, difference);
        }
      }
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
    Run run({4}, 4, 1);
    float* x = run.parts[0]->data();
    x[0] = std::nanf("");
    x[1] = infinite;
    x[2] = -infinite;
    std::fill(run.gamma.data(), run.gamma.data() + 4, 1.f);
    run.Call(isa, {4}, 1, /*has_relu=*/true, 1);
    CHECK(std::isnan(run.result.data()[0]));
    CHECK_EQUAL(run.result.data()[1], infinite);
    CHECK_EQUAL(run.result.data()[2], 0.f);
  }
}

}  // namespace
