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
#include "kernel_check.h"
#include "kernels/byoc_integer.h"
#include "kernels/byoc_integer_plan.h"

namespace {

struct Case {
  int64_t images = 1, groups = 1, channels = 1, columns = 1;  // of a group
  int64_t height = 1, width = 1, kernel = 1, stride = 1, dilation = 1, pad = 0;
  int src_dtype = BYOC_U8;
  bool signed_weights = true, extreme = false, winograd = false, zeros = true, weights_zero = false;
  int threads = 1;
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
void Run(const byoc_integer_params& p, const byoc_integer_pack_params& pack, Bytes* src,
         Bytes* weights, int32_t src_zero, int32_t weights_zero, Bytes* dst) {
  Bytes packed(static_cast<int64_t>(byoc_integer_packed_bytes(&p)), 64);
  Bytes scratch(p.of.threads * byoc_integer_thread_bytes(&p), 64);
  char message[BYOC_ERROR_BYTES];
  int64_t pack_params[sizeof(pack) / 8], params[sizeof(p) / 8];
  std::memcpy(pack_params, &pack, sizeof(pack));
  std::memcpy(params, &p, sizeof(p));
  const auto threads = static_cast<int>(p.of.threads);
  void* const to_pack[] = {weights->data(), packed.data()};
  void* const data[] = {src->data(), packed.data(), &src_zero, &weights_zero, dst->data()};
  CHECK(byoc_integer_pack(pack_params, to_pack, nullptr, threads, message) == BYOC_OK);
  CHECK(byoc_integer(params, data, scratch.data(), threads, message) == BYOC_OK);
}

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    std::mt19937 random(11);
    byoc_integer_params p{};
    p.of.isa = isa;
    p.of.images = c.images;
    p.of.groups = c.groups;
    p.of.channels = c.channels;
    p.of.outputs = c.columns;
    p.of.height = c.height;
    p.of.width = c.width;
    p.of.kernel_height = p.of.kernel_width = c.kernel;
    p.of.stride_y = p.of.stride_x = c.stride;
    p.of.dilation_y = p.of.dilation_x = c.dilation;
    p.of.pad_top = p.of.pad_left = c.pad;
    const int64_t reach = (c.kernel - 1) * c.dilation + 1;
    p.of.out_height = (c.height + 2 * c.pad - reach) / c.stride + 1;
    p.of.out_width = (c.width + 2 * c.pad - reach) / c.stride + 1;
    p.of.src.pixel = c.groups * c.channels;
    p.of.src.row = p.of.src.pixel * c.width;
    p.of.src.image = p.of.src.row * c.height;
    p.src_group = c.channels;
    p.of.dst.pixel = c.groups * c.columns;
    p.of.dst.row = p.of.out_width * p.of.dst.pixel;
    p.dst_group = p.next_column = c.columns;
    p.across = c.groups;
    p.src_dtype = c.src_dtype;
    p.dst_dtype = BYOC_S32;
    p.at.bias = p.at.src_scale = p.at.weights_scale = p.at.dst_scale = p.at.dst_zero = -1;
    p.at.src_zero = c.zeros ? 2 : -1;
    p.at.weights_zero = c.weights_zero ? 3 : -1;
    p.at.scales = p.at.zeros = 1;
    p.at.result = 4;
    p.is_winograd = c.winograd;
    const bool is_depthwise = byoc_is_depthwise(&p.of) != 0;
    p.rows =
        is_depthwise ? static_cast<int64_t>(BYOC_INTEGER_RUN) : byoc_integer_block(&p, 1 << 14);
    p.of.threads = c.threads;
    const int64_t area = c.kernel * c.kernel, of_column = c.channels * area;
    const byoc_integer_pack_params pack = {p, c.columns * of_column, of_column, area, c.kernel,
                                           1, c.signed_weights};
    const int64_t results = c.images * p.of.out_height * p.of.out_width * p.of.dst.pixel;
    Bytes src(c.images * p.of.src.image), weights(c.groups * c.columns * of_column);
    Bytes dst(4 * results);
    const bool is_signed = c.src_dtype == BYOC_S8;
    Fill(&src, c.extreme, is_signed ? -128 : 0, is_signed ? 127 : 255, &random);
    Fill(&weights, c.extreme, c.signed_weights ? -128 : 0, c.signed_weights ? 127 : 255, &random);
    int32_t src_zero = is_signed ? (c.extreme ? -128 : 7) : (c.extreme ? 0 : 131),
            weights_zero = 99;
    Run(p, pack, &src, &weights, src_zero, weights_zero, &dst);

    const int64_t of_src = c.zeros ? src_zero : 0, of_weights = c.weights_zero ? weights_zero : 0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < results; ++i) {
      const int64_t column = i % p.of.dst.pixel, pixel = i / p.of.dst.pixel;
      const int64_t x = pixel % p.of.out_width, y = pixel / p.of.out_width % p.of.out_height;
      const int64_t image = pixel / p.of.out_width / p.of.out_height, group = column / c.columns;
      int64_t sum = 0;
      for (int64_t t = 0; t < of_column; ++t) {
        const int64_t at_y = y * c.stride - c.pad + t % area / c.kernel * c.dilation;
        const int64_t at_x = x * c.stride - c.pad + t % c.kernel * c.dilation;
        if (at_y < 0 || at_y >= c.height || at_x < 0 || at_x >= c.width) continue;
        const int64_t at = image * p.of.src.image + at_y * p.of.src.row + at_x * p.of.src.pixel +
                           group * c.channels + t / area;
        sum += (Number(src.data()[at], is_signed) - of_src) *
               (Number(weights.data()[column * of_column + t], c.signed_weights) - of_weights);
      }
      int32_t result;
      std::memcpy(&result, dst.data() + 4 * i, 4);
      wrong += result != sum;
    }
    if (wrong != 0) {
      check::Failed(__FILE__, __LINE__,
                    "instruction set " + std::to_string(isa) + ", groups " +
                        std::to_string(c.groups) + ", channels " + std::to_string(c.channels) +
                        ", columns " + std::to_string(c.columns) + ", kernel " +
                        std::to_string(c.kernel) + ", width " + std::to_string(c.width) + ": " +
                        std::to_string(wrong) + " of " + std::to_string(results) + " are wrong");
    }
  }
}

/// A transposed convolution with windows of 2 x 3 pixels that lie next to each other.
void CheckTransposed(int64_t channels, int64_t columns, int64_t width, int threads) {
  constexpr int64_t kDown = 2, kAcross = 3, kImages = 2, kHeight = 3;
  for (byoc_isa isa : InstructionSets()) {
    std::mt19937 random(12);
    byoc_integer_params p{};
    p.of.isa = isa;
    p.of.images = kImages;
    p.of.groups = kDown * kAcross;
    p.of.channels = channels;
    p.of.outputs = columns;
    p.of.height = p.of.out_height = kHeight;
    p.of.width = p.of.out_width = width;
    p.of.kernel_height = p.of.kernel_width = p.of.stride_y = p.of.stride_x = p.of.dilation_y =
        p.of.dilation_x = 1;
    p.of.src.pixel = channels;
    p.of.src.row = channels * width;
    p.of.src.image = p.of.src.row * kHeight;
    p.dst_group = columns;
    p.of.dst.pixel = kAcross * columns;
    p.dst_down = width * p.of.dst.pixel;
    p.of.dst.row = kDown * p.dst_down;
    p.across = kAcross;
    p.dst_dtype = BYOC_S32;
    p.src_dtype = BYOC_U8;
    p.at.bias = p.at.src_scale = p.at.weights_scale = p.at.dst_scale = p.at.dst_zero = -1;
    p.at.src_zero = 2;
    p.at.weights_zero = 3;
    p.at.scales = p.at.zeros = 1;
    p.at.result = 4;
    p.rows = byoc_integer_block(&p, 1 << 12);
    p.of.threads = threads;
    constexpr int64_t kArea = kDown * kAcross;
    byoc_integer_pack_params pack{};  // weights [channels, columns, window], as in the models
    pack.product = p;
    pack.group_stride = pack.is_signed = 1;
    pack.column_stride = kArea;
    pack.channel_stride = kArea * columns;
    Bytes src(kImages * p.of.src.image), weights(kArea * columns * channels);
    const int64_t results = kImages * kHeight * width * kArea * columns;
    Bytes dst(4 * results);
    Fill(&src, false, 0, 255, &random);
    Fill(&weights, false, -128, 127, &random);
    int32_t src_zero = 131, weights_zero = 9;
    Run(p, pack, &src, &weights, src_zero, weights_zero, &dst);
    int64_t wrong = 0;
    for (int64_t i = 0; i < results; ++i) {
      const int64_t column = i % columns, x = i / columns % (kAcross * width);
      const int64_t y = i / columns / (kAcross * width);  // images follow each other
      const int64_t pixel = y / kDown * width + x / kAcross;
      const int64_t of_window = y % kDown * kAcross + x % kAcross;
      int64_t sum = 0;
      for (int64_t c = 0; c < channels; ++c) {
        sum += (src.data()[pixel * channels + c] - src_zero) *
               (Number(weights.data()[(c * columns + column) * kArea + of_window], true) -
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
        c.columns = columns;
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
      c.columns = 21;
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
        c.columns = 19;
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
  c.columns = 4;
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
  c.columns = 3;
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
        c.columns = columns;
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
