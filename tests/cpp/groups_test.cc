// SPDX-License-Identifier: Apache-2.0
// The convolution of groups against one in float64: depthwise ones and groups of up to 17 channels
// and outputs, every tail of every dimension, each width of a kernel, strides, holes, pads wider
// than the image, both layouts. An unreadable page lies behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "convolution_check.h"
#include "kernels/byoc_groups.h"

namespace {

struct Case : Convolution {
  Case() {
    groups = 19;
    height = 7;
    width = 13;
    kernel_height = kernel_width = 5;
    top = bottom = left = right = 2;
  }
};

Outcome Run(Convolution c, byoc_isa isa) {
  c.lanes = byoc_lanes(isa);
  if (!c.change) {  // no large sums
    const int64_t weights = c.groups * c.outputs * c.Taps();
    const float most = std::min(1.f, 3 / std::sqrt(static_cast<float>(c.Taps())));
    c.change = [=](float*, float* w) {
      std::for_each(w, w + weights, [=](float& weight) { weight *= most; });
    };
  }
  Params<byoc_convolution> p(c, isa);
  return Convolve(c, &p, {byoc_groups_pack, byoc_groups, byoc_groups_packed_bytes(&*p), 0});
}

// Sums of at most 432 products, rounded to float32: 6e-7 was seen.
constexpr double kTolerance = 2e-6;

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    CheckError(__FILE__, __LINE__, c, "lanes " + std::to_string(byoc_lanes(isa)), Run(c, isa).error,
               kTolerance);
  }
}

/// Channels and outputs of a group: depthwise, as many, multiples, and more of the one or the
/// other.
struct Sizes {
  int64_t channels, outputs;
};
constexpr Sizes kGroups[] = {{1, 1}, {2, 2}, {1, 3}, {4, 2}, {3, 3}, {16, 16}};

TEST(depthwise) {
  for (int64_t groups = 1; groups <= 49; ++groups) {
    Case c;
    c.groups = groups;
    c.gap = groups % 3;
    Check(c);
  }
}

TEST(channels_and_outputs) {
  for (int64_t channels = 1; channels <= 17; ++channels) {
    for (int64_t outputs = 1; outputs <= 17; ++outputs) {
      for (int64_t groups : {1, 9}) {
        Case c;
        c.groups = groups;
        c.channels = channels;
        c.outputs = outputs;
        c.across = outputs % 2 == 1;
        c.height = 2;
        c.width = 10;
        c.kernel_height = c.kernel_width = 3;
        c.top = c.bottom = c.left = c.right = 1;
        c.gap = outputs % 3;
        Check(c);
      }
    }
  }
}

TEST(tails_of_groups) {
  for (int64_t groups = 1; groups <= 33; ++groups) {
    for (const auto& [channels, outputs] : kGroups) {
      Case c;
      c.groups = groups;
      c.channels = channels;
      c.outputs = outputs;
      c.height = 2;
      c.kernel_height = 1;
      c.top = c.bottom = 0;
      Check(c);
    }
  }
}

TEST(sizes_of_images) {
  for (int64_t height : {1, 2, 5}) {
    for (int64_t width = 1; width <= 27; ++width) {
      for (int64_t stride : {1, 2}) {
        for (int64_t kernel : {3, 5, 7}) {
          for (const auto& [channels, outputs] : {kGroups[0], kGroups[1], kGroups[2]}) {
            Case c;
            c.height = height;
            c.width = width;
            c.groups = 17;
            c.channels = channels;
            c.outputs = outputs;
            c.kernel_height = c.kernel_width = kernel;
            c.top = c.bottom = c.left = c.right = kernel / 2;
            c.stride_y = c.stride_x = stride;
            Check(c);
          }
        }
      }
    }
  }
}

TEST(kernels_pads_strides_and_holes) {
  for (int64_t wide : {1, 2, 3, 4, 5, 7, 11}) {
    for (int64_t high : {1, 3}) {
      for (int64_t stride : {1, 2, 3}) {
        for (int64_t dilation : {1, 2, 3}) {
          for (int64_t before : {0, 1, 9}) {
            for (const auto& [channels, outputs] : {kGroups[0], kGroups[1], kGroups[4]}) {
              Case c;
              c.groups = 9;
              c.channels = channels;
              c.outputs = outputs;
              c.height = 5;
              c.width = 21;
              c.kernel_height = high;
              c.kernel_width = wide;
              c.stride_x = stride;
              c.stride_y = 4 - stride;
              c.dilation_y = dilation;
              c.dilation_x = high == 3 ? 1 : dilation;
              c.top = c.left = before;
              c.bottom = c.right = 9 - before;
              const bool fits_down = c.height + 9 > (high - 1) * c.dilation_y;
              if (fits_down && c.width + 9 > (wide - 1) * c.dilation_x) Check(c);
            }
          }
        }
      }
    }
  }
}

TEST(layouts) {
  for (Layout src : {Layout::kChannelsLast, Layout::kBlocks}) {
    for (Layout dst : {Layout::kChannelsLast, Layout::kBlocks}) {
      for (const auto& [channels, outputs] : {kGroups[0], kGroups[1], kGroups[5]}) {
        Case c;
        c.groups = 48;
        c.channels = channels;
        c.outputs = outputs;
        c.images = 2;
        c.src = src;
        c.dst = dst;
        Check(c);
      }
    }
  }
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      for (const auto& [channels, outputs] : kGroups) {
        Case c;
        c.channels = channels;
        c.outputs = outputs;
        c.bias = bias;
        c.images = 2;
        c.post_ops = chain;
        c.groups = 19 / outputs + 2;
        if (channels > 1) c.kernel_height = 1;
        Check(c);
        c.groups = 32 / outputs;
        if (16 % outputs == 0 && channels <= outputs) c.dst = Layout::kBlocks;
        Check(c);
      }
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    for (const auto& [channels, outputs] : kGroups) {
      Case c;
      c.images = 2;
      c.height = 33;
      c.width = 29;
      c.groups = 37;
      c.channels = channels;
      c.outputs = outputs;
      CheckThreads(c, kTolerance, [&](const Convolution& of) { return Run(of, isa); });
    }
  }
}

TEST(a_nan_stays) {
  for (byoc_isa isa : InstructionSets()) {
    for (const auto& [channels, outputs] : kGroups) {
      Case c;
      c.channels = channels;
      c.outputs = outputs;
      CheckThatNanStays(c, {BYOC_RELU, BYOC_CLIP, BYOC_HARDSWISH, BYOC_LOGISTIC},
                        [&](const Convolution& of) { return Run(of, isa); });
    }
  }
}

// What is not finite in one group reaches no other, although a vector holds several: neither its
// channels nor what lies in the lanes that have none.
TEST(what_is_not_finite_stays_in_its_group) {
  for (byoc_isa isa : InstructionSets()) {
    for (const auto& [channels, outputs] : kGroups) {
      for (float number :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        constexpr int64_t kBad = 2;
        Case c;
        c.groups = 5;
        c.channels = channels;
        c.outputs = outputs;
        c.height = c.kernel_height = 1;
        c.width = 9;
        c.kernel_width = 3;
        c.top = c.bottom = 0;
        c.left = c.right = 1;
        c.bias = false;
        const int64_t row = c.groups * channels, all = c.groups * outputs;
        c.change = [=](float* src, float* weights) {
          std::fill(src, src + 9 * row, 1.f);
          std::fill(weights, weights + all * channels * 3, 1.f);
          for (int64_t x = 0; x < 9; ++x) src[x * row + kBad * channels] = number;
        };
        const std::vector<float> results = Run(c, isa).results;
        for (size_t i = 0; i < results.size(); ++i) {
          const bool is_bad = static_cast<int64_t>(i) % all / outputs == kBad;
          CHECK_EQUAL(std::isfinite(results[i]), !is_bad);
        }
      }
    }
  }
}

}  // namespace
