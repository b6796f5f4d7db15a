// SPDX-License-Identifier: Apache-2.0
// The direct convolution of few channels against one in float64: every tail of every dimension,
// groups, strides, holes, pads wider than the image, and each layout. An unreadable page lies
// behind every buffer.
#include <algorithm>
#include <cstdint>

#include "convolution_check.h"
#include "kernels/byoc_direct.h"

namespace {

struct Case : Convolution {
  Case() {
    channels = 3;
    outputs = 4;
    height = 5;
    width = 6;
    kernel_height = kernel_width = 3;
    top = bottom = left = right = 1;
    src = Layout::kPlanes;
  }
};

Outcome Run(const Convolution& c) {
  Params<byoc_direct_params> p(c, BYOC_AVX2);
  p->shuffle = c.shuffle;
  return Convolve(c, &p,
                  {byoc_direct_pack, byoc_direct, byoc_direct_packed_bytes(&*p),
                   byoc_direct_scratch_bytes(&*p)});
}

bool HasIsa() {
  const std::vector<byoc_isa> sets = InstructionSets();
  return std::find(sets.begin(), sets.end(), BYOC_AVX2) != sets.end();
}

// Sums of at most some hundred products, rounded to float32: 5e-7 was seen.
constexpr double kTolerance = 2e-6;

void Check(const Case& c) {
  if (HasIsa()) CheckError(__FILE__, __LINE__, c, "avx2", Run(c).error, kTolerance);
}

TEST(channels_and_outputs) {
  for (int64_t channels : {1, 2, 3, 5, 7, 8, 9}) {
    for (int64_t outputs : {1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 48, 49, 64}) {
      Case c;
      c.channels = channels;
      c.outputs = outputs;
      c.across = outputs % 2 == 1;
      Check(c);
    }
  }
}

TEST(sizes_of_images) {
  for (int64_t height = 1; height <= 9; ++height) {
    for (int64_t width = 1; width <= 16; ++width) {
      for (int64_t outputs : {16, 24}) {
        Case c;
        c.height = height;
        c.width = width;
        c.outputs = outputs;
        Check(c);
        c.stride_y = c.stride_x = 2;
        Check(c);
      }
    }
  }
}

TEST(groups) {
  for (int64_t groups : {1, 2, 3, 4}) {
    for (int64_t channels : {1, 2, 6}) {
      for (int64_t outputs : {1, 5, 8, 28}) {
        for (Layout src : {Layout::kPlanes, Layout::kChannelsLast, Layout::kBlocks}) {
          if (src == Layout::kBlocks && groups * channels % 8 != 0) continue;
          for (int64_t kernel : {1, 3}) {
            Case c;
            c.groups = groups;
            c.channels = channels;
            c.outputs = outputs;
            c.src = src;
            c.kernel_height = c.kernel_width = kernel;
            c.top = c.bottom = c.left = c.right = kernel / 2;
            c.gap = 3;
            Check(c);
          }
        }
      }
    }
  }
}

TEST(shuffled_channels) {
  for (int64_t shuffle : {2, 3, 4, 6, 24}) {
    for (int64_t groups : {1, 2, 3, 4}) {
      for (Layout src : {Layout::kPlanes, Layout::kChannelsLast, Layout::kBlocks}) {
        Case c;
        c.groups = groups;
        c.channels = 24 / groups;
        c.outputs = 11;
        c.src = src;
        c.shuffle = shuffle;
        c.threads = 2;
        Check(c);
      }
    }
  }
}

TEST(pads_strides_and_holes) {
  for (int64_t kernel : {1, 2, 3, 5}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t dilation : {1, 2, 3}) {
        for (int64_t before : {0, 1, 2, 7}) {
          for (int64_t after : {0, 1, 4}) {
            Case c;
            c.channels = 2;
            c.height = 6;
            c.width = 7;
            c.kernel_height = kernel;
            c.kernel_width = kernel == 1 ? 3 : kernel - 1;
            c.stride_x = stride;
            c.stride_y = 4 - stride;
            c.dilation_x = dilation;
            c.dilation_y = 4 - dilation;
            c.top = c.left = before;
            c.bottom = c.right = after;
            const bool fits_down = c.height + before + after > (kernel - 1) * c.dilation_y;
            const bool fits = c.width + before + after > (c.kernel_width - 1) * dilation;
            if (fits && fits_down) Check(c);
          }
        }
      }
    }
  }
}

TEST(layouts_of_results) {
  for (Layout src : {Layout::kPlanes, Layout::kChannelsLast, Layout::kBlocks}) {
    for (int64_t outputs : {8, 16, 24, 40, 64}) {
      Case c;
      c.channels = src == Layout::kBlocks ? 8 : 3;
      c.outputs = outputs;
      c.src = src;
      c.dst = Layout::kBlocks;
      c.images = 2;
      Check(c);
      c.groups = 2;
      Check(c);
    }
  }
}

TEST(first_layers) {
  const int64_t layers[][5] = {
      {3, 32, 3, 2, 1}, {3, 64, 7, 2, 3}, {3, 96, 11, 4, 0}, {1, 16, 5, 1, 2}};
  for (const auto& layer : layers) {
    Case c;
    c.channels = layer[0];
    c.outputs = layer[1];
    c.kernel_height = c.kernel_width = layer[2];
    c.stride_y = c.stride_x = layer[3];
    c.top = c.bottom = c.left = c.right = layer[4];
    c.height = 37;
    c.width = 41;
    c.threads = 2;
    Check(c);
  }
}

TEST(threads_do_not_change_a_bit) {
  if (!HasIsa()) return;
  Case c;
  c.images = 3;
  c.groups = 2;
  c.height = 33;
  c.width = 47;
  c.outputs = 20;
  CheckThreads(c, kTolerance, Run);
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      for (int64_t outputs : {21, 24}) {
        for (int64_t groups : {1, 2}) {
          Case c;
          c.groups = groups;
          c.outputs = outputs;
          c.height = 7;
          c.width = 11;
          c.bias = bias;
          c.post_ops = chain;
          Check(c);
          c.dst = Layout::kBlocks;
          if (outputs == 24) Check(c);
        }
      }
    }
  }
}

TEST(a_nan_stays) {
  if (!HasIsa()) return;
  Case c;
  c.channels = c.outputs = c.height = c.kernel_height = c.kernel_width = 1;
  c.width = 4;
  c.top = c.bottom = c.left = c.right = 0;
  c.bias = false;
  CheckThatNanStays(c, {BYOC_RELU, BYOC_CLIP, BYOC_HARDSWISH, BYOC_LOGISTIC}, Run);
}

}  // namespace
