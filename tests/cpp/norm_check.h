// SPDX-License-Identifier: Apache-2.0
// For the tests of kernels that normalise: parts that are read as if they were joined, their
// statistics, and the normalised numbers in float64.
#ifndef TVM_BYOC_DNNL_TESTS_NORM_CHECK_H_
#define TVM_BYOC_DNNL_TESTS_NORM_CHECK_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernel_check.h"
#include "kernels/byoc_product.h"

struct Parts {
  static constexpr double kEpsilon = 1e-3;
  const std::vector<int64_t> widths;  // the channels of each
  const int64_t channels, pixels;
  const bool has_relu;
  std::vector<std::unique_ptr<Guarded>> sources;
  Guarded gamma, beta, mean, variance;

  Parts(const std::vector<int64_t>& widths, int64_t pixels, bool has_relu)
      : widths(widths),
        channels(std::accumulate(widths.begin(), widths.end(), int64_t{0})),
        pixels(pixels),
        has_relu(has_relu),
        gamma(static_cast<size_t>(channels)),
        beta(static_cast<size_t>(channels)),
        mean(static_cast<size_t>(channels)),
        variance(static_cast<size_t>(channels)) {
    std::mt19937 random(3);
    for (int64_t width : widths) {
      sources.push_back(std::make_unique<Guarded>(static_cast<size_t>(width * pixels)));
      Fill({sources.back().get()}, &random);
    }
    Fill({&gamma, &beta, &mean, &variance}, &random);
    for (int64_t k = 0; k < channels; ++k) variance.data()[k] = std::abs(variance.data()[k]);
  }

  /// As of a kernel's parameters.
  std::vector<int64_t> Params(byoc_isa isa, int threads) const {
    byoc_batch_norm_params p{};
    p.isa = isa;
    p.pixels = pixels;
    p.channels = channels;
    p.parts = static_cast<int64_t>(widths.size());
    p.has_relu = has_relu;
    p.epsilon = kEpsilon;
    p.threads = threads;
    std::vector<int64_t> params(sizeof(p) / sizeof(int64_t));
    std::memcpy(params.data(), &p, sizeof(p));
    params.insert(params.end(), widths.begin(), widths.end());
    return params;
  }

  /// As of a kernel's data.
  std::vector<void*> Data() {
    std::vector<void*> data;
    for (const auto& source : sources) data.push_back(source->data());
    data.insert(data.end(), {gamma.data(), beta.data(), mean.data(), variance.data()});
    return data;
  }

  double Exact(int64_t pixel, int64_t channel) const {
    int64_t k = channel;
    size_t part = 0;
    while (k >= widths[part]) k -= widths[part++];
    const double x = sources[part]->data()[pixel * widths[part] + k];
    const double y = (x - mean.data()[channel]) / std::sqrt(variance.data()[channel] + kEpsilon) *
                         gamma.data()[channel] +
                     beta.data()[channel];
    return has_relu ? std::max(y, 0.0) : y;
  }
};

#endif  // TVM_BYOC_DNNL_TESTS_NORM_CHECK_H_
