// SPDX-License-Identifier: Apache-2.0
// The depthwise convolution against one in float64: every tail of every dimension, each width of a
// kernel, strides, holes, pads wider than the image, both layouts. An unreadable page lies behind
// every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_depthwise.h"
#include "kernels/byoc_depthwise_pack.h"

namespace {

struct Case {
  byoc_isa isa = BYOC_AVX2;
  int64_t images = 1, channels = 19, height = 7, width = 13;
  int64_t kernel_height = 5, kernel_width = 5, stride_y = 1, stride_x = 1, dilation_y = 1;
  int64_t top = 2, bottom = 2, left = 2, right = 2;
  bool src_blocks = false, dst_blocks = false;
  int64_t gap = 0;  // floats between the pixels of the result (channels last only)
  int threads = 1;
  bool bias = true;
  std::vector<byoc_post_op> post_ops;
};

byoc_strides Strides(bool blocks, int64_t lanes, int64_t height, int64_t width, int64_t channels,
                     int64_t gap) {
  const int64_t area = height * width, pixel = channels + gap;
  if (blocks) return {area * channels, width * lanes, lanes, area * lanes, lanes};
  return {area * pixel, width * pixel, pixel, 0, channels};
}

/// Runs a case and returns the largest error, as a share of the largest result; what must not be
/// written counts as infinitely wrong.
double Error(const Case& c, std::vector<float>* result = nullptr, float fill = 0) {
  std::mt19937 random(7);
  std::vector<int64_t> params(
      (sizeof(byoc_depthwise_params) + c.post_ops.size() * sizeof(byoc_post_op)) / sizeof(int64_t));
  auto& p = *reinterpret_cast<byoc_depthwise_params*>(params.data());
  p.isa = c.isa;
  p.images = c.images;
  p.channels = c.channels;
  p.height = c.height;
  p.width = c.width;
  p.out_height =
      (c.height + c.top + c.bottom - (c.kernel_height - 1) * c.dilation_y - 1) / c.stride_y + 1;
  p.out_width = (c.width + c.left + c.right - c.kernel_width) / c.stride_x + 1;
  p.kernel_height = c.kernel_height;
  p.kernel_width = c.kernel_width;
  p.stride_y = c.stride_y;
  p.stride_x = c.stride_x;
  p.dilation_y = c.dilation_y;
  p.pad_top = c.top;
  p.pad_left = c.left;
  const int64_t lanes = byoc_lanes(c.isa);
  p.src = Strides(c.src_blocks, lanes, c.height, c.width, c.channels, 0);
  p.dst = Strides(c.dst_blocks, lanes, p.out_height, p.out_width, c.channels, c.gap);
  p.has_bias = c.bias;
  p.post_ops = static_cast<int64_t>(c.post_ops.size());

  Guarded src(static_cast<size_t>(c.images * p.src.image));
  Guarded dst(static_cast<size_t>(c.images * p.dst.image - c.gap));
  Guarded weights(static_cast<size_t>(c.channels * byoc_depthwise_taps(&p)));
  Guarded bias(static_cast<size_t>(c.channels));
  Guarded packed(byoc_depthwise_packed_bytes(&p) / 4, 64);
  Fill({&src, &weights, &bias}, &random);
  if (std::isnan(fill)) std::fill_n(src.data(), src.size(), fill);
  Operands operands(bias.size(), dst.size(), &random);
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  std::vector<byoc_post_op> post_ops = c.post_ops;
  operands.Bind(p.dst, &post_ops, &data);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), reinterpret_cast<byoc_post_op*>(&p + 1));
  void* const to_pack[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_depthwise_pack(params.data(), to_pack, nullptr, c.threads, message) == BYOC_OK);
  CHECK(byoc_depthwise(params.data(), data.data(), nullptr, c.threads, message) == BYOC_OK);

  const Window window = {c.height,   c.width,    c.kernel_height, c.kernel_width,
                         c.stride_y, c.stride_x, c.dilation_y,    1,
                         c.top,      c.left};
  Comparison results(dst);
  const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
    double sum = c.bias ? bias.data()[o] : 0;
    ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
      const int64_t weight = (o * c.kernel_height + i) * c.kernel_width + j;
      sum += static_cast<double>(src.data()[Offset(p.src, n, sy, sx, o)]) * weights.data()[weight];
    });
    results.Expect(at, operands.Apply(post_ops, sum, o, at));
    if (result != nullptr) result->push_back(dst.data()[at]);
  };
  ForEachResult(p.dst, c.images, p.out_height, p.out_width, c.channels, expect);
  return results.Error();
}

// Sums of at most 49 products, rounded to float32: 3e-7 was seen.
constexpr double kTolerance = 2e-6;

void Check(Case c) {
  for (byoc_isa isa : InstructionSets()) {
    c.isa = isa;
    const double error = Error(c);
    if (error <= kTolerance) continue;
    auto text = [](int64_t number) { return std::to_string(number); };
    check::Failed(__FILE__, __LINE__,
                  "lanes " + text(byoc_lanes(isa)) + ", channels " + text(c.channels) + ", image " +
                      text(c.height) + " x " + text(c.width) + ", kernel " + text(c.kernel_height) +
                      " x " + text(c.kernel_width) + ", strides " + text(c.stride_y) + ", " +
                      text(c.stride_x) + ", pads " + text(c.top) + ", " + text(c.left) +
                      ": error " + check::Show(error));
  }
}

TEST(channels) {
  for (int64_t channels = 1; channels <= 49; ++channels) {
    Case c;
    c.channels = channels;
    c.gap = channels % 3;
    Check(c);
  }
}

TEST(sizes_of_images) {
  for (int64_t height = 1; height <= 6; ++height) {
    for (int64_t width = 1; width <= 27; ++width) {
      for (int64_t stride : {1, 2}) {
        for (int64_t kernel : {5, 7}) {
          Case c;
          c.height = height;
          c.width = width;
          c.channels = 17;
          c.kernel_height = c.kernel_width = kernel;
          c.top = c.bottom = c.left = c.right = kernel / 2;
          c.stride_y = c.stride_x = stride;
          Check(c);
        }
      }
    }
  }
}

TEST(kernels_pads_strides_and_holes) {
  for (int64_t wide : {5, 7}) {
    for (int64_t high : {1, 2, 3, 5, 7}) {
      for (int64_t stride : {1, 2}) {
        for (int64_t dilation : {1, 2, 3}) {
          for (int64_t before : {0, 1, 2, 9}) {
            for (int64_t after : {0, 1, 8}) {
              Case c;
              c.width = 11;
              c.kernel_height = high;
              c.kernel_width = wide;
              c.stride_x = stride;
              c.stride_y = 4 - stride;
              c.dilation_y = dilation;
              c.top = c.left = before;
              c.bottom = c.right = after;
              if (c.height + before + after > (high - 1) * dilation) Check(c);
            }
          }
        }
      }
    }
  }
}

TEST(layouts) {
  for (bool src : {false, true}) {
    for (bool dst : {false, true}) {
      Case c;
      c.channels = 48;
      c.images = 2;
      c.src_blocks = src;
      c.dst_blocks = dst;
      Check(c);
    }
  }
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      Case c;
      c.bias = bias;
      c.images = 2;
      c.post_ops = chain;
      Check(c);
      c.channels = 32;
      c.dst_blocks = true;
      Check(c);
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    Case c;
    c.isa = isa;
    c.images = 2;
    c.height = 33;
    c.width = 29;
    c.channels = 37;
    std::vector<float> alone, together;
    CHECK(Error(c, &alone) <= kTolerance);
    for (int threads : {2, 3, 4, 7}) {
      c.threads = threads;
      together.clear();
      CHECK(Error(c, &together) <= kTolerance);
      CHECK(together == alone);
    }
  }
}

TEST(a_nan_stays) {
  for (byoc_isa isa : InstructionSets()) {
    for (byoc_post_op_kind kind : {BYOC_RELU, BYOC_CLIP, BYOC_HARDSWISH, BYOC_LOGISTIC}) {
      Case c;
      c.isa = isa;
      byoc_post_op op{};
      op.kind = kind;
      op.alpha = 0.25f;
      op.beta = 0.5f;
      c.post_ops = {op};
      std::vector<float> result;
      Error(c, &result, std::numeric_limits<float>::quiet_NaN());
      CHECK(std::all_of(result.begin(), result.end(), [](float y) { return std::isnan(y); }));
    }
  }
}

}  // namespace
