// SPDX-License-Identifier: Apache-2.0
// The direct convolution of few channels against one in float64: every tail of every dimension,
// groups, strides, holes, pads wider than the image, and each layout. An unreadable page lies
// behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_direct.h"

namespace {

enum class Layout { kPlanes, kChannelsLast, kBlocks };

struct Case {
  int64_t images = 1, groups = 1, channels = 3, height = 5, width = 6, outputs = 4;  // of a group
  int64_t kernel_height = 3, kernel_width = 3, stride_y = 1, stride_x = 1;
  int64_t dilation_y = 1, dilation_x = 1;
  int64_t top = 1, bottom = 1, left = 1, right = 1;
  Layout src = Layout::kPlanes, dst = Layout::kChannelsLast;
  int64_t gap = 0;  // floats between the pixels of the result (channels last only)
  int64_t shuffle = 1;
  int threads = 1;
  bool bias = true;
  std::vector<byoc_post_op> post_ops;
};

int64_t Results(int64_t size, int64_t pads, int64_t kernel, int64_t stride, int64_t dilation) {
  return (size + pads - (kernel - 1) * dilation - 1) / stride + 1;
}

byoc_strides Strides(Layout layout, int64_t height, int64_t width, int64_t channels, int64_t gap) {
  const int64_t area = height * width;
  switch (layout) {
    case Layout::kPlanes:
      return {area * channels, width, 1, area, 1};
    case Layout::kBlocks:
      return {area * channels, width * 8, 8, area * 8, 8};
    default:
      return {area * (channels + gap), width * (channels + gap), channels + gap, 0, channels};
  }
}

/// Room for the parameters of a convolution with so many post-operations; all is zero.
std::vector<int64_t> Params(size_t post_ops) {
  return std::vector<int64_t>((sizeof(byoc_direct_params) + post_ops * sizeof(byoc_post_op)) /
                              sizeof(int64_t));
}

/// Runs a case and returns the largest error, as a share of the largest result; what must not be
/// written counts as infinitely wrong.
double Error(const Case& c, std::vector<float>* result = nullptr) {
  std::mt19937 random(7);
  std::vector<int64_t> params = Params(c.post_ops.size());
  auto& p = *reinterpret_cast<byoc_direct_params*>(params.data());
  p.images = c.images;
  p.groups = c.groups;
  p.channels = c.channels;
  p.height = c.height;
  p.width = c.width;
  p.outputs = c.outputs;
  p.out_height = Results(c.height, c.top + c.bottom, c.kernel_height, c.stride_y, c.dilation_y);
  p.out_width = Results(c.width, c.left + c.right, c.kernel_width, c.stride_x, c.dilation_x);
  p.kernel_height = c.kernel_height;
  p.kernel_width = c.kernel_width;
  p.stride_y = c.stride_y;
  p.stride_x = c.stride_x;
  p.dilation_y = c.dilation_y;
  p.dilation_x = c.dilation_x;
  p.pad_top = c.top;
  p.pad_left = c.left;
  p.src = Strides(c.src, c.height, c.width, c.groups * c.channels, 0);
  p.dst = Strides(c.dst, p.out_height, p.out_width, c.groups * c.outputs, c.gap);
  p.shuffle = c.shuffle;
  p.has_bias = c.bias;
  p.post_ops = static_cast<int64_t>(c.post_ops.size());
  p.threads = c.threads;

  Guarded src(static_cast<size_t>(c.images * p.src.image));
  Guarded dst(static_cast<size_t>(c.images * p.dst.image - c.gap));
  Guarded weights(static_cast<size_t>(c.groups * c.outputs * byoc_direct_taps(&p)));
  Guarded bias(static_cast<size_t>(c.groups * c.outputs));
  Guarded packed(byoc_direct_packed_bytes(&p) / 4, 64);
  Guarded scratch(byoc_direct_scratch_bytes(&p) / 4, 64);
  Fill({&src, &weights, &bias}, &random);
  Operands operands(bias.size(), dst.size(), &random);
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  std::vector<byoc_post_op> post_ops = c.post_ops;
  operands.Bind(p.dst, &post_ops, &data);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), reinterpret_cast<byoc_post_op*>(&p + 1));
  void* const to_pack[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_direct_pack(params.data(), to_pack, nullptr, c.threads, message) == BYOC_OK);
  CHECK(byoc_direct(params.data(), data.data(), scratch.data(), c.threads, message) == BYOC_OK);

  const Window window = {c.height,   c.width,      c.kernel_height, c.kernel_width, c.stride_y,
                         c.stride_x, c.dilation_y, c.dilation_x,    c.top,          c.left};
  const auto shuffled = [&](int64_t channel) {  // as in the documentation of oneDNN
    const int64_t columns = c.groups * c.channels / c.shuffle;
    return channel % columns * c.shuffle + channel / columns;
  };
  Comparison results(dst);
  const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
    double sum = c.bias ? bias.data()[o] : 0;
    ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
      for (int64_t k = 0; k < c.channels; ++k) {
        const int64_t channel = shuffled(o / c.outputs * c.channels + k);
        const int64_t weight = ((o * c.channels + k) * c.kernel_height + i) * c.kernel_width + j;
        sum += static_cast<double>(src.data()[Offset(p.src, n, sy, sx, channel)]) *
               weights.data()[weight];
      }
    });
    results.Expect(at, operands.Apply(post_ops, sum, o, at));
    if (result != nullptr) result->push_back(dst.data()[at]);
  };
  ForEachResult(p.dst, c.images, p.out_height, p.out_width, c.groups * c.outputs, expect);
  return results.Error();
}

bool HasIsa() {
  const std::vector<byoc_isa> sets = InstructionSets();
  return std::find(sets.begin(), sets.end(), BYOC_AVX2) != sets.end();
}

// Sums of at most some hundred products, rounded to float32: 5e-7 was seen.
constexpr double kTolerance = 2e-6;

void Check(const Case& c) {
  if (!HasIsa()) return;
  const double error = Error(c);
  if (!(error <= kTolerance)) {
    auto text = [](int64_t number) { return std::to_string(number); };
    check::Failed(__FILE__, __LINE__,
                  "groups " + text(c.groups) + ", channels " + text(c.channels) + ", outputs " +
                      text(c.outputs) + ", image " + text(c.height) + " x " + text(c.width) +
                      ", kernel " + text(c.kernel_height) + " x " + text(c.kernel_width) +
                      ", strides " + text(c.stride_y) + ", " + text(c.stride_x) + ", pads " +
                      text(c.top) + ", " + text(c.left) + ": error " + check::Show(error));
  }
}

TEST(channels_and_outputs) {
  for (int64_t channels : {1, 2, 3, 5, 7, 8, 9}) {
    for (int64_t outputs : {1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 48, 49, 64}) {
      Case c;
      c.channels = channels;
      c.outputs = outputs;
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
  std::vector<float> alone, together;
  CHECK(Error(c, &alone) <= kTolerance);
  for (int threads : {2, 3, 4, 7}) {
    c.threads = threads;
    together.clear();
    CHECK(Error(c, &together) <= kTolerance);
    CHECK(together == alone);
  }
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
  for (byoc_post_op_kind kind : {BYOC_RELU, BYOC_CLIP, BYOC_HARDSWISH, BYOC_LOGISTIC}) {
    std::vector<int64_t> params = Params(1);
    auto& p = *reinterpret_cast<byoc_direct_params*>(params.data());
    p.images = p.groups = p.channels = p.outputs = p.height = p.out_height = 1;
    p.width = p.out_width = 4;
    p.kernel_height = p.kernel_width = p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
    p.src = p.dst = Strides(Layout::kChannelsLast, 1, 4, 1, 0);
    p.shuffle = p.post_ops = p.threads = 1;
    byoc_post_op op{};
    op.kind = kind;
    op.alpha = 0.25f;
    op.beta = 0.5f;
    op.operand = -1;
    std::copy_n(&op, 1, reinterpret_cast<byoc_post_op*>(&p + 1));
    Guarded src(4), dst(4), weights(1), packed(byoc_direct_packed_bytes(&p) / 4, 64);
    Guarded scratch(byoc_direct_scratch_bytes(&p) / 4, 64);
    std::fill(src.data(), src.data() + 4, std::numeric_limits<float>::quiet_NaN());
    weights.data()[0] = 1;
    void* const to_pack[] = {weights.data(), packed.data()};
    void* const data[] = {src.data(), packed.data(), dst.data()};
    char message[BYOC_ERROR_BYTES];
    byoc_direct_pack(params.data(), to_pack, nullptr, 1, message);
    byoc_direct(params.data(), data, scratch.data(), 1, message);
    CHECK(std::all_of(dst.data(), dst.data() + 4, [](float y) { return std::isnan(y); }));
  }
}

}  // namespace
