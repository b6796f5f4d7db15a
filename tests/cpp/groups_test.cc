// SPDX-License-Identifier: Apache-2.0
// The convolution of groups against one in float64: depthwise ones and groups of up to 17 channels
// and outputs, every tail of every dimension, each width of a kernel, strides, holes, pads wider
// than the image, both layouts. An unreadable page lies behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_groups.h"

namespace {

struct Case {
  byoc_isa isa = BYOC_AVX2;
  int64_t images = 1, groups = 19, channels = 1, outputs = 1;  // of a group
  int64_t height = 7, width = 13;
  int64_t kernel_height = 5, kernel_width = 5, stride_y = 1, stride_x = 1;
  int64_t dilation_y = 1, dilation_x = 1;
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

int64_t Results(int64_t size, int64_t pads, int64_t kernel, int64_t stride, int64_t dilation) {
  return (size + pads - (kernel - 1) * dilation - 1) / stride + 1;
}

/// Runs a case and returns the largest error, as a share of the largest result; what must not be
/// written counts as infinitely wrong. `fill`: what each number of the source is, unless it is 0.
double Error(const Case& c, std::vector<float>* result = nullptr, float fill = 0) {
  std::mt19937 random(7);
  std::vector<int64_t> params(
      (sizeof(byoc_groups_params) + c.post_ops.size() * sizeof(byoc_post_op)) / sizeof(int64_t));
  auto& p = *reinterpret_cast<byoc_groups_params*>(params.data());
  p.isa = c.isa;
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
  const int64_t lanes = byoc_lanes(c.isa), all = c.groups * c.outputs;
  p.src = Strides(c.src_blocks, lanes, c.height, c.width, c.groups * c.channels, 0);
  p.dst = Strides(c.dst_blocks, lanes, p.out_height, p.out_width, all, c.gap);
  p.has_bias = c.bias;
  p.post_ops = static_cast<int64_t>(c.post_ops.size());

  Guarded src(static_cast<size_t>(c.images * p.src.image));
  Guarded dst(static_cast<size_t>(c.images * p.dst.image - c.gap));
  Guarded weights(static_cast<size_t>(all * byoc_groups_taps(&p)));
  Guarded bias(static_cast<size_t>(all));
  Guarded packed(byoc_groups_packed_bytes(&p) / 4, 64);
  Fill({&src, &bias}, &random);
  const auto taps = static_cast<float>(byoc_groups_taps(&p));
  Fill({&weights}, &random, std::min(1.f, 5 / std::sqrt(taps)));  // no large sums
  if (fill != 0) std::fill_n(src.data(), src.size(), fill);
  Operands operands(bias.size(), dst.size(), &random);
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  std::vector<byoc_post_op> post_ops = c.post_ops;
  operands.Bind(p.dst, &post_ops, &data);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), reinterpret_cast<byoc_post_op*>(&p + 1));
  void* const to_pack[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_groups_pack(params.data(), to_pack, nullptr, c.threads, message) == BYOC_OK);
  CHECK(byoc_groups(params.data(), data.data(), nullptr, c.threads, message) == BYOC_OK);

  const Window window = {c.height,   c.width,      c.kernel_height, c.kernel_width, c.stride_y,
                         c.stride_x, c.dilation_y, c.dilation_x,    c.top,          c.left};
  Comparison results(dst);
  const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
    double sum = c.bias ? bias.data()[o] : 0;
    ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
      for (int64_t k = 0; k < c.channels; ++k) {
        const int64_t channel = o / c.outputs * c.channels + k;
        const int64_t weight = ((o * c.channels + k) * c.kernel_height + i) * c.kernel_width + j;
        sum += static_cast<double>(src.data()[Offset(p.src, n, sy, sx, channel)]) *
               weights.data()[weight];
      }
    });
    results.Expect(at, operands.Apply(post_ops, sum, o, at));
    if (result != nullptr) result->push_back(dst.data()[at]);
  };
  ForEachResult(p.dst, c.images, p.out_height, p.out_width, all, expect);
  return results.Error();
}

// Sums of at most 432 products, rounded to float32: 6e-7 was seen.
constexpr double kTolerance = 2e-6;

void Check(Case c) {
  for (byoc_isa isa : InstructionSets()) {
    c.isa = isa;
    const double error = Error(c);
    if (error <= kTolerance) continue;
    auto text = [](int64_t number) { return std::to_string(number); };
    check::Failed(__FILE__, __LINE__,
                  "lanes " + text(byoc_lanes(isa)) + ", groups " + text(c.groups) + " of " +
                      text(c.channels) + " to " + text(c.outputs) + ", image " + text(c.height) +
                      " x " + text(c.width) + ", kernel " + text(c.kernel_height) + " x " +
                      text(c.kernel_width) + ", strides " + text(c.stride_y) + ", " +
                      text(c.stride_x) + ", dilations " + text(c.dilation_y) + ", " +
                      text(c.dilation_x) + ", pads " + text(c.top) + ", " + text(c.left) +
                      ": error " + check::Show(error));
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
  for (bool src : {false, true}) {
    for (bool dst : {false, true}) {
      for (const auto& [channels, outputs] : {kGroups[0], kGroups[1], kGroups[5]}) {
        Case c;
        c.groups = 48;
        c.channels = channels;
        c.outputs = outputs;
        c.images = 2;
        c.src_blocks = src;
        c.dst_blocks = dst;
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
        c.dst_blocks = 16 % outputs == 0 && channels <= outputs;
        Check(c);
      }
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    for (const auto& [channels, outputs] : kGroups) {
      Case c;
      c.isa = isa;
      c.images = 2;
      c.height = 33;
      c.width = 29;
      c.groups = 37;
      c.channels = channels;
      c.outputs = outputs;
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
}

TEST(a_nan_stays) {
  for (byoc_isa isa : InstructionSets()) {
    for (byoc_post_op_kind kind : {BYOC_RELU, BYOC_CLIP, BYOC_HARDSWISH, BYOC_LOGISTIC}) {
      for (const auto& [channels, outputs] : kGroups) {
        Case c;
        c.isa = isa;
        c.channels = channels;
        c.outputs = outputs;
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
}

// What is not finite in one group reaches no other, although a vector holds several: neither its
// channels nor what lies in the lanes that have none.
TEST(what_is_not_finite_stays_in_its_group) {
  for (byoc_isa isa : InstructionSets()) {
    for (const auto& [channels, outputs] : kGroups) {
      for (float number :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        constexpr int64_t kCount = 5, kBad = 2, kWidth = 9;
        byoc_groups_params p{};
        p.isa = isa;
        p.images = p.height = p.out_height = 1;
        p.width = p.out_width = kWidth;
        p.groups = kCount;
        p.channels = channels;
        p.outputs = outputs;
        p.kernel_height = 1;
        p.kernel_width = 3;
        p.pad_left = 1;
        p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
        const int64_t all = kCount * outputs;
        p.src = Strides(false, byoc_lanes(isa), 1, kWidth, kCount * channels, 0);
        p.dst = Strides(false, byoc_lanes(isa), 1, kWidth, all, 0);
        std::vector<float> src(static_cast<size_t>(p.src.image), 1), dst(kWidth * all);
        std::vector<float> weights(static_cast<size_t>(all * byoc_groups_taps(&p)), 1);
        for (int64_t x = 0; x < kWidth; ++x) src[(x * kCount + kBad) * channels] = number;
        Guarded packed(byoc_groups_packed_bytes(&p) / 4, 64);
        const auto* params = reinterpret_cast<const int64_t*>(&p);
        void* const to_pack[] = {weights.data(), packed.data()};
        void* const data[] = {src.data(), packed.data(), dst.data()};
        char message[BYOC_ERROR_BYTES];
        byoc_groups_pack(params, to_pack, nullptr, 1, message);
        byoc_groups(params, data, nullptr, 1, message);
        for (size_t i = 0; i < dst.size(); ++i) {
          const bool is_bad = static_cast<int64_t>(i) % all / outputs == kBad;
          CHECK_EQUAL(std::isfinite(dst[i]), !is_bad);
        }
      }
    }
  }
}

}  // namespace
