// SPDX-License-Identifier: Apache-2.0
// Convolutions and products by parts of bfloat16 on AMX against direct ones in float64: every tail
// of every dimension, kernels, strides, dilations and pads, the layouts of the source, and odd
// numbers. An unreadable page lies behind every buffer. Nothing is tested on a CPU without AMX.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "convolution_check.h"
#include "kernels/byoc_split.h"
#include "kernels/byoc_split_parts.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case : Convolution {
  int64_t cache = 1 << 20;
};

double Error(Case c, int64_t parts) {
  c.lanes = 16;
  c.src_gap = c.src == Layout::kChannelsLast ? c.gap : 0;
  Params<byoc_split_params> p(c, BYOC_AVX512);
  p->parts = parts;
  byoc_split_plan(&*p, c.threads, c.cache * 3 / 4);
  return Convolve(c, &p,
                  {byoc_split_pack, byoc_split, byoc_split_packed_bytes(&*p),
                   byoc_split_scratch_bytes(&*p)},
                  /*of_products=*/true)
      .error;
}

// With two parts, 2^-16 + 2^-17 of |a * b| may be lost of a product a * b, and a few roundings of
// float32 come to it. With three, what is lost is that of float32 and of its sums.
double Tolerance(int64_t parts) { return parts == 2 ? 2.4e-5 : 1e-6; }

void Check(const Case& c, double tolerance_of_two = Tolerance(2)) {
  if (!HasTiles()) return;
  for (int64_t parts : {2, 3}) {
    CheckError(__FILE__, __LINE__, c, std::to_string(parts) + " parts", Error(c, parts),
               std::min(tolerance_of_two, Tolerance(parts)));
  }
}

Case Image(int64_t channels, int64_t height, int64_t width, int64_t outputs, int64_t kernel,
           int64_t stride = 1, int64_t pad = 0) {
  Case c;
  c.channels = channels;
  c.height = height;
  c.width = width;
  c.outputs = outputs;
  c.kernel_height = c.kernel_width = kernel;
  c.stride_y = c.stride_x = stride;
  c.top = c.bottom = c.left = c.right = pad;
  return c;
}

TEST(products_of_matrices) {
  for (int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 49, 65, 130}) {
    for (int64_t depth : {1, 2, 15, 16, 31, 32, 33, 64, 100}) {
      for (int64_t columns : {1, 3, 15, 16, 17, 31, 32, 33, 48, 49, 65}) {
        Case c = Image(depth, 1, rows, columns, 1);
        c.across = columns % 2 == 1;
        c.gap = rows % 3;
        Check(c);
      }
    }
  }
}

TEST(channels_and_outputs) {
  for (int64_t channels : {1, 3, 7, 8, 10, 11, 16, 17, 31, 32, 33, 40, 65}) {
    for (int64_t outputs : {1, 5, 16, 17, 32, 33}) {
      for (Layout src : {Layout::kChannelsLast, Layout::kPlanes}) {
        Case c = Image(channels, 6, 5, outputs, 3, 1, 1);
        c.src = src;
        Check(c);
      }
    }
  }
}

TEST(sizes_of_images_kernels_and_strides) {
  for (int64_t height : {1, 2, 3, 4, 7, 8, 13}) {
    for (int64_t width : {1, 2, 3, 5, 7, 8, 33}) {
      for (int64_t kernel : {1, 2, 3, 5, 7}) {
        for (int64_t stride : {1, 2, 3}) {
          const int64_t pad = kernel / 2;
          if (height + 2 * pad < kernel || width + 2 * pad < kernel) continue;
          Check(Image(5, height, width, 3, kernel, stride, pad));
          Check(Image(33, height, width, 3, kernel, stride, pad));
        }
      }
    }
  }
}

TEST(uneven_kernels_strides_dilations_and_pads) {
  for (int pads = 0; pads < 81; ++pads) {
    Case c = Image(pads % 2 == 0 ? 3 : 34, 7, 9, 4, 3);
    c.kernel_width = 2 + pads % 3;
    c.stride_y = 1 + pads % 2;
    c.stride_x = 1 + pads / 2 % 3;
    c.dilation_y = 1 + pads / 3 % 3;
    c.dilation_x = 1 + pads / 6 % 2;
    c.top = pads % 3;
    c.bottom = pads / 3 % 3;
    c.left = pads / 9 % 3;
    c.right = pads / 27;
    Check(c);
  }
}

TEST(pads_wider_than_the_kernel) {
  for (int64_t pad : {4, 9}) {
    Check(Image(6, 3, 2, 5, 3, 1, pad));
    Check(Image(40, 3, 2, 5, 1, 2, pad));
  }
}

TEST(layouts_of_source_and_result) {
  for (Layout src : {Layout::kChannelsLast, Layout::kBlocks, Layout::kPlanes}) {
    for (Layout dst : {Layout::kChannelsLast, Layout::kBlocks}) {
      for (int64_t channels : {16, 48}) {
        for (int64_t kernel : {1, 3}) {
          Case c = Image(channels, 9, 21, 80, kernel, 1, kernel / 2);
          c.images = 2;
          c.src = src;
          c.dst = dst;
          Check(c);
        }
      }
    }
  }
}

TEST(batches_threads_gaps_and_caches) {
  for (int threads : {1, 2, 3, 7}) {
    for (int64_t images : {1, 3}) {
      for (int64_t gap : {0, 5}) {
        for (int64_t cache : {1 << 12, 1 << 20}) {
          Case c = Image(20, 13, 31, 70, 3, 1, 1);
          c.images = images;
          c.threads = threads;
          c.gap = gap;
          c.cache = cache;
          Check(c);
        }
      }
    }
  }
}

// A product of matrices that reads its channels in several slices.
TEST(slices_of_channels) {
  for (int64_t rows : {5, 33, 70}) {
    for (int64_t channels : {100, 256, 700}) {
      for (int64_t outputs : {20, 70}) {
        for (int64_t cache : {1 << 12, 1 << 15, 1 << 17}) {
          for (Layout src : {Layout::kChannelsLast, Layout::kPlanes}) {
            Case c = Image(channels, 1, rows, outputs, 1);
            c.cache = cache;
            c.src = src;
            Check(c);
          }
        }
      }
    }
  }
}

TEST(many_rows_and_a_long_depth) {
  Case c = Image(700, 1, 1100, 40, 1);
  c.threads = 2;
  Check(c);
  Check(Image(256, 14, 14, 64, 3, 1, 1));
}

// With numbers that are bfloat16 already, nothing is lost that a post-operation could make larger.
TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      Case c = Image(36, 7, 6, 21, 3, 1, 1);
      c.bias = bias;
      c.post_ops = chain;
      c.change = [](float* src, float* weights) {
        for (int64_t i = 0; i < 42 * 36; ++i) src[i] = std::nearbyint(src[i] * 64) / 64;
        for (int64_t i = 0; i < 21 * 36 * 9; ++i) weights[i] = std::nearbyint(weights[i] * 64) / 64;
      };
      Check(c, 1e-6);
    }
  }
}

// The errors of a sum have either sign: the sum of many products loses far less than each of them.
TEST(the_error_of_a_long_sum_is_small) {
  Check(Image(512, 1, 64, 48, 1), 2e-6);
  Check(Image(64, 14, 14, 32, 3, 1, 1), 2e-6);
}

// Numbers for which a part would be an infinity, or infinity times zero.
TEST(infinities_and_large_numbers_stay_what_they_are) {
  const float most = std::numeric_limits<float>::max();
  for (float number : {kInfinity, -kInfinity, NAN, most, -most}) {
    for (float weight : {1.f, 0.5f, 1.00390625f, -3.f, 0.f}) {
      for (int64_t channels : {3, 17, 32, 40}) {  // a chunk reads pixels behind its own, or none
        Case c = Image(channels, 5, 5, 18, 3, 1, 1);
        c.bias = false;
        c.change = [&](float* src, float* weights) {
          std::fill(weights, weights + 18 * channels * 9, weight);
          std::fill(src, src + 25 * channels, 0.25f);
          src[12 * channels + 2] = number;
        };
        Check(c);
      }
    }
  }
}

TEST(an_error_that_is_no_number_is_the_largest) {
  CHECK(std::isnan(Worse(Worse(0.5, NAN), 1)));
  CHECK(std::isnan(Worse(NAN, 0.5)));
  CHECK(Worse(0.5, 0.25) == 0.5 && Worse(0.25, 0.5) == 0.5);
}

}  // namespace
