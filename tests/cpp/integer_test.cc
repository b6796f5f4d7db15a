// SPDX-License-Identifier: Apache-2.0
// Sums of 8-bit products against 64-bit integers, to the last bit: every tail of every dimension,
// the largest values, each form of the kernel, each instruction set that this CPU has. An
// unreadable page lies behind every buffer.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "convolution_check.h"
#include "kernels/byoc_integer.h"
#include "kernels/byoc_integer_plan.h"

namespace {

struct Case : Convolution {
  int64_t kernel = 1, stride = 1, dilation = 1, pad = 0;  // along both axes
  int src_dtype = BYOC_U8;
  bool signed_weights = true, extreme = false, winograd = false, zeros = true, weights_zero = false;
};

/// Bytes in guarded memory.
struct Bytes {
  explicit Bytes(int64_t count, size_t alignment = 4)
      : memory(static_cast<size_t>(count + 3) / 4, alignment), count(count) {}
  uint8_t* data() {  // ends where the unreadable page begins, but for up to three bytes
    return reinterpret_cast<uint8_t*>(memory.data());
  }
  Guarded memory;
  int64_t count;
};

void Fill(Bytes* buffer, bool extreme, int low, int high, std::mt19937* random) {
  std::uniform_int_distribution<int> number(low, high);
  for (int64_t i = 0; i < buffer->count; ++i)
    buffer->data()[i] =
        static_cast<uint8_t>(extreme ? ((*random)() % 8 == 0 ? low : high) : number(*random));
}

int64_t Number(uint8_t byte, bool is_signed) {
  return is_signed ? static_cast<int8_t>(byte) : static_cast<int64_t>(byte);
}

/// Packs the weights, and runs the kernel, which may read both zero points.
void Run(const byoc_integer_params& p, Bytes* src, Bytes* weights, int32_t src_zero,
         int32_t weights_zero, Bytes* dst) {
  Bytes packed(static_cast<int64_t>(byoc_integer_packed_bytes(&p)), 64);
  Bytes scratch(p.of.threads * byoc_integer_thread_bytes(&p), 64);
  char message[BYOC_ERROR_BYTES];
  int64_t params[sizeof(p) / 8];
  std::memcpy(params, &p, sizeof(p));
  const auto threads = static_cast<int>(p.of.threads);
  void* const to_pack[] = {weights->data(), packed.data()};
  void* const data[] = {src->data(), packed.data(), &src_zero, &weights_zero, dst->data()};
  CHECK(byoc_integer_pack(params, to_pack, nullptr, threads, message) == BYOC_OK);
  CHECK(byoc_integer(params, data, scratch.data(), threads, message) == BYOC_OK);
}

/// The parameters of both zero points, and of sums of 32 bits as they are.
Params<byoc_integer_params> Describe(const Convolution& c, byoc_isa isa) {
  Params<byoc_integer_params> p(c, isa);
  p->dst_dtype = BYOC_S32;
  p->src_dtype = BYOC_U8;
  p->at.bias = p->at.src_scale = p->at.weights_scale = p->at.dst_scale = p->at.dst_zero = -1;
  p->at.src_zero = 2;
  p->at.weights_zero = 3;
  p->at.scales = p->at.zeros = 1;
  p->at.result = 4;
  return p;
}

void Check(Case c) {
  c.bias = false;
  c.kernel_height = c.kernel_width = c.kernel;
  c.stride_y = c.stride_x = c.stride;
  c.dilation_y = c.dilation_x = c.dilation;
  c.top = c.bottom = c.left = c.right = c.pad;
  for (byoc_isa isa : InstructionSets()) {
    std::mt19937 random(11);
    Params<byoc_integer_params> params = Describe(c, isa);
    byoc_integer_params& p = *params;
    p.src_group = c.channels;
    p.dst_group = p.next_column = c.outputs;
    p.across = c.groups;
    p.src_dtype = c.src_dtype;
    p.weights_dtype = c.signed_weights ? BYOC_S8 : BYOC_U8;
    if (!c.zeros) p.at.src_zero = -1;
    if (!c.weights_zero) p.at.weights_zero = -1;
    p.is_winograd = c.winograd;
    p.rows = byoc_is_depthwise(&p.of) ? static_cast<int64_t>(BYOC_INTEGER_RUN)
                                      : byoc_integer_block(&p, 1 << 13);
    Bytes src(c.images * p.of.src.image), weights(c.groups * c.outputs * c.Taps());
    Bytes dst(4 * c.images * p.of.dst.image);
    const bool is_signed = c.src_dtype == BYOC_S8;
    Fill(&src, c.extreme, is_signed ? -128 : 0, is_signed ? 127 : 255, &random);
    Fill(&weights, c.extreme, c.signed_weights ? -128 : 0, c.signed_weights ? 127 : 255, &random);
    int32_t src_zero = is_signed ? (c.extreme ? -128 : 7) : (c.extreme ? 0 : 131),
            weights_zero = 99;
    Run(p, &src, &weights, src_zero, weights_zero, &dst);

    const int64_t of_src = c.zeros ? src_zero : 0, of_weights = c.weights_zero ? weights_zero : 0;
    const Window window = {c.height, c.width,    c.kernel,   c.kernel, c.stride,
                           c.stride, c.dilation, c.dilation, c.pad,    c.pad};
    int64_t wrong = 0;
    const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
      int64_t sum = 0;
      ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
        for (int64_t k = 0; k < c.channels; ++k) {
          const int64_t of_tap = Offset(p.of.src, n, sy, sx, o / c.outputs * c.channels + k);
          sum += (Number(src.data()[of_tap], is_signed) - of_src) *
                 (Number(weights.data()[c.Weight(o, k, i, j)], c.signed_weights) - of_weights);
        }
      });
      int32_t result;
      std::memcpy(&result, dst.data() + 4 * at, 4);
      wrong += result != sum;
    };
    ForEachResult(p.of.dst, c.images, c.OutHeight(), c.OutWidth(), c.groups * c.outputs, expect);
    CheckError(__FILE__, __LINE__, c, "wrong numbers on instruction set " + std::to_string(isa),
               static_cast<double>(wrong), 0);
  }
}

/// A transposed convolution with windows of 2 x 3 pixels that lie next to each other.
void CheckTransposed(int64_t channels, int64_t columns, int64_t width, int threads) {
  constexpr int64_t kDown = 2, kAcross = 3, kImages = 2, kHeight = 3;
  for (byoc_isa isa : InstructionSets()) {
    std::mt19937 random(12);
    Convolution c;
    c.images = kImages;
    c.groups = kDown * kAcross;
    c.channels = channels;
    c.outputs = columns;
    c.height = kHeight;
    c.width = width;
    c.bias = false;
    c.threads = threads;
    Params<byoc_integer_params> described = Describe(c, isa);
    byoc_integer_params& p = *described;
    p.of.src = {channels * width * kHeight, channels * width, channels, 0, channels};
    p.dst_group = columns;
    p.of.dst.pixel = kAcross * columns;
    p.dst_down = width * p.of.dst.pixel;
    p.of.dst.row = kDown * p.dst_down;
    p.across = kAcross;
    p.rows = byoc_integer_block(&p, 1 << 11);
    constexpr int64_t kArea = kDown * kAcross;
    p.of.weights = {1, kArea, kArea * columns, 0};  // [channels, columns, window], as in the models
    p.weights_dtype = BYOC_S8;
    Bytes src(kImages * p.of.src.image), weights(kArea * columns * channels);
    const int64_t results = kImages * kHeight * width * kArea * columns;
    Bytes dst(4 * results);
    Fill(&src, false, 0, 255, &random);
    Fill(&weights, false, -128, 127, &random);
    int32_t src_zero = 131, weights_zero = 9;
    Run(p, &src, &weights, src_zero, weights_zero, &dst);
    int64_t wrong = 0;
    for (int64_t i = 0; i < results; ++i) {
      const int64_t column = i % columns, x = i / columns % (kAcross * width);
      const int64_t y = i / columns / (kAcross * width);  // images follow each other
      const int64_t pixel = y / kDown * width + x / kAcross;
      const int64_t of_window = y % kDown * kAcross + x % kAcross;
      int64_t sum = 0;
      for (int64_t k = 0; k < channels; ++k) {
        sum += (src.data()[pixel * channels + k] - src_zero) *
               (Number(weights.data()[(k * columns + column) * kArea + of_window], true) -
                weights_zero);
      }
      int32_t result;
      std::memcpy(&result, dst.data() + 4 * i, 4);
      wrong += result != sum;
    }
    CHECK(wrong == 0);
  }
}

/// Each dtype, and the largest values of each.
void CheckAll(Case c) {
  for (int src_dtype : {BYOC_U8, BYOC_S8}) {
    for (bool extreme : {false, true}) {
      c.src_dtype = src_dtype;
      c.extreme = extreme;
      Check(c);
    }
  }
}

TEST(products_of_matrices) {
  for (int64_t rows : {1, 2, 5, 6, 7, 14, 15, 31}) {
    for (int64_t columns : {1, 7, 16, 17, 33, 65}) {
      for (int64_t depth : {1, 2, 16, 17, 31, 64, 131}) {
        Case c;
        c.width = rows;
        c.outputs = columns;
        c.channels = depth;
        Check(c);
      }
    }
  }
}

TEST(zero_points_and_dtypes_of_weights) {
  for (bool of_weights : {false, true}) {
    for (bool signed_weights : {false, true}) {
      Case c;
      c.width = 9;
      c.outputs = 21;
      c.channels = 300;
      c.weights_zero = of_weights;
      c.signed_weights = signed_weights;
      CheckAll(c);
      c.zeros = false;
      CheckAll(c);
    }
  }
}

TEST(transposed_windows_next_to_each_other) {
  for (int64_t channels : {1, 17, 64}) {
    for (int64_t columns : {2, 16, 37}) {
      for (int64_t width : {1, 5, 23}) CheckTransposed(channels, columns, width, width % 2 ? 1 : 2);
    }
  }
  CheckTransposed(8, 40, 6, 2);
}

TEST(windows) {
  for (int64_t channels : {1, 3, 16, 35}) {
    for (int64_t kernel : {2, 3, 5}) {
      for (int64_t stride : {1, 2}) {
        Case c;
        c.images = 2;
        c.channels = channels;
        c.outputs = 19;
        c.height = 7;
        c.width = 9;
        c.kernel = kernel;
        c.stride = stride;
        c.pad = kernel / 2;
        Check(c);
        c.dilation = 2;
        Check(c);
        c.groups = 3;
        c.threads = 3;
        Check(c);
      }
    }
  }
}

TEST(windows_that_lie_outside) {
  Case c;
  c.channels = 5;
  c.outputs = 4;
  c.height = 2;
  c.width = 3;
  c.kernel = 3;
  c.pad = 4;
  CheckAll(c);
}

TEST(depthwise) {
  for (int64_t channels : {2, 15, 16, 17, 32, 33, 100}) {
    for (int64_t kernel : {1, 2, 3, 5, 8}) {
      for (int64_t stride : {1, 2}) {
        Case c;
        c.images = 2;
        c.groups = channels;
        c.height = 9;
        c.width = stride == 1 ? 19 : 11;  // more than a run of pixels, or fewer
        c.kernel = kernel;
        c.stride = stride;
        c.pad = kernel / 2;
        c.dilation = kernel == 3 ? 2 : 1;
        c.threads = 2;
        CheckAll(c);
      }
    }
  }
}

TEST(tiles_of_as_many_channels_as_sums_can_hold) {
  Case c;
  c.winograd = true;
  c.channels = 900;
  c.outputs = 3;
  c.height = c.width = 3;
  c.kernel = 3;
  c.pad = 1;
  CheckAll(c);
}

TEST(tiles) {
  for (int64_t channels : {1, 16, 17, 33, 64}) {
    for (int64_t columns : {1, 16, 33}) {
      for (int64_t width : {1, 2, 5}) {
        Case c;
        c.winograd = true;
        c.images = 2;
        c.channels = channels;
        c.outputs = columns;
        c.height = 5;
        c.width = width;
        c.kernel = 3;
        c.pad = 1;
        c.threads = static_cast<int>(width % 3 + 1);
        CheckAll(c);
      }
    }
  }
}

}  // namespace
