// SPDX-License-Identifier: Apache-2.0
// Winograd's convolution against a direct one in float64: every tail of every dimension, both sizes
// of tiles, both ways to divide the work, each instruction set that this CPU has, and products by
// parts of bfloat16 where it has AMX. An unreadable page lies behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_winograd.h"
#include "kernels/byoc_winograd_pack.h"
#if BYOC_HAS_AMX
#include "kernels/byoc_split_winograd.h"
#include "kernels/byoc_split_winograd_pack.h"
#endif

namespace {

/// A kernel, and what belongs to it.
struct Form {
  decltype(&byoc_winograd_plan) plan;
  decltype(&byoc_winograd_packed_bytes) packed_bytes;
  decltype(&byoc_winograd_scratch_bytes) scratch_bytes;
  byoc_kernel pack, run;
};
constexpr Form kFloat32 = {byoc_winograd_plan, byoc_winograd_packed_bytes,
                           byoc_winograd_scratch_bytes, byoc_winograd_pack, byoc_winograd};
#if BYOC_HAS_AMX
constexpr Form kParts = {byoc_split_winograd_plan, byoc_split_winograd_packed_bytes,
                         byoc_split_winograd_scratch_bytes, byoc_split_winograd_pack,
                         byoc_split_winograd};
#endif

/// A way to compute a convolution; m: results of a tile and axis.
struct Way {
  const Form* form;
  byoc_isa isa;
  int m;
  const char* name;
  bool late = false;  // each call transforms the weights
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (byoc_isa isa : InstructionSets()) {
    const char* name = isa == BYOC_AVX2 ? "avx2" : "avx512";
    for (int m : {4, 2}) ways.push_back({&kFloat32, isa, m, name});
    ways.push_back({&kFloat32, isa, 4, name, true});
  }
#if BYOC_HAS_AMX
  if (HasTiles()) ways.push_back({&kParts, BYOC_AVX512, 4, "parts on AMX"});
#endif
  return ways;
}

struct Case {
  int64_t images = 1, channels = 1, height = 4, width = 4, outputs = 1;
  int64_t top = 1, bottom = 1, left = 1, right = 1;
  int64_t lanes = 0;  // of a block of channels; 0: channels last
  int64_t gap = 0;    // floats between the pixels of the result (channels last only)
  bool over_outputs = false;
  int threads = 1;
  int64_t cache = 1 << 19;
  bool bias = true;
  std::vector<byoc_post_op> post_ops;

  int64_t OutHeight() const { return height + top + bottom - 2; }
  int64_t OutWidth() const { return width + left + right - 2; }
};

byoc_strides Strides(int64_t height, int64_t width, int64_t channels, int64_t lanes, int64_t gap) {
  if (lanes == 0) {
    const int64_t pixel = channels + gap;
    return {height * width * pixel, width * pixel, pixel, 0, channels};
  }
  return {height * width * channels, width * lanes, lanes, height * width * lanes, lanes};
}

size_t Size(const byoc_strides& s, int64_t images) { return static_cast<size_t>(images * s.image); }

/// Room for the parameters of a convolution with so many post-operations; all is zero.
std::vector<int64_t> Params(size_t post_ops) {
  return std::vector<int64_t>((sizeof(byoc_winograd_params) + post_ops * sizeof(byoc_post_op)) /
                              sizeof(int64_t));
}

/// Runs a case and returns the largest error, as a share of the largest result; what must not be
/// written counts as infinitely wrong.
double Error(const Case& c, const Way& way) {
  std::mt19937 random(7);
  std::vector<int64_t> params = Params(c.post_ops.size());
  auto& w = *reinterpret_cast<byoc_winograd_params*>(params.data());
  w.isa = way.isa;
  w.m = way.m;
  w.late = way.late;
  w.images = c.images;
  w.channels = c.channels;
  w.height = c.height;
  w.width = c.width;
  w.outputs = c.outputs;
  w.out_height = c.OutHeight();
  w.out_width = c.OutWidth();
  w.pad_top = c.top;
  w.pad_left = c.left;
  w.src = Strides(c.height, c.width, c.channels, c.lanes, 0);
  w.dst = Strides(w.out_height, w.out_width, c.outputs, c.lanes, c.gap);
  w.has_bias = c.bias;
  w.post_ops = static_cast<int64_t>(c.post_ops.size());
  way.form->plan(&w, c.threads, c.cache);
  w.over_outputs = c.over_outputs;

  Guarded src(Size(w.src, c.images)), dst(Size(w.dst, c.images) - static_cast<size_t>(c.gap));
  Guarded weights(static_cast<size_t>(c.outputs * c.channels * 9));
  Guarded bias(static_cast<size_t>(c.outputs));
  Guarded packed(way.form->packed_bytes(&w) / 4, 64);
  Guarded scratch(way.form->scratch_bytes(&w) / 4, 64);
  std::fill(scratch.data(), scratch.data() + scratch.size(), NAN);
  Fill({&src, &weights, &bias}, &random);
  Operands operands(bias.size(), dst.size(), &random);
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  std::vector<byoc_post_op> post_ops = c.post_ops;
  operands.Bind(w.dst, &post_ops, &data);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), reinterpret_cast<byoc_post_op*>(&w + 1));
  void* const to_pack[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  way.form->pack(params.data(), to_pack, nullptr, c.threads, message);
  way.form->run(params.data(), data.data(), scratch.data(), c.threads, message);

  const Window window = {c.height, c.width, 3, 3, 1, 1, 1, 1, c.top, c.left};
  double largest = 0, error = 0;
  std::vector<bool> written(dst.size(), false);
  for (int64_t n = 0; n < c.images; ++n) {
    for (int64_t y = 0; y < w.out_height; ++y) {
      for (int64_t x = 0; x < w.out_width; ++x) {
        for (int64_t o = 0; o < c.outputs; ++o) {
          double sum = c.bias ? bias.data()[o] : 0;
          ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
            for (int64_t k = 0; k < c.channels; ++k) {
              sum += static_cast<double>(src.data()[Offset(w.src, n, sy, sx, k)]) *
                     weights.data()[((o * c.channels + k) * 3 + i) * 3 + j];
            }
          });
          const int64_t at = Offset(w.dst, n, y, x, o);
          sum = operands.Apply(post_ops, sum, o, at);
          largest = std::max(largest, std::abs(sum));
          const double difference = std::abs(sum - dst.data()[at]);
          if (!(difference <= error)) error = difference;
          written[static_cast<size_t>(at)] = true;
        }
      }
    }
  }
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i] && dst.data()[i] != Guarded::kUntouched) return INFINITY;
  }
  return error / std::max(largest, 1e-30);
}

// F(4x4) loses about three bits, F(2x2) less than one: 2e-6 and 5e-7 were seen for 64 channels.
double Tolerance(const Way& way) { return way.m == 4 ? 1e-5 : 2e-6; }

void Check(const Case& c) {
  for (const Way& way : Ways()) {
    // A vector of AVX-512 is wider than a block of eight.
    if (way.isa == BYOC_AVX512 && c.lanes == 8) continue;
    for (bool over_outputs : {false, true}) {
      Case variant = c;
      variant.over_outputs = over_outputs;
      const double error = Error(variant, way);
      if (error <= Tolerance(way)) continue;
      check::Failed(__FILE__, __LINE__,
                    std::string(way.name) + (way.late ? ", late" : "") + ", m " +
                        std::to_string(way.m) + ", over outputs " + std::to_string(over_outputs) +
                        ", channels " + std::to_string(c.channels) + ", outputs " +
                        std::to_string(c.outputs) + ", image " + std::to_string(c.height) + " x " +
                        std::to_string(c.width) + ": error " + check::Show(error));
    }
  }
}

TEST(channels_and_outputs) {
  for (int64_t channels : {1, 3, 7, 8, 9, 16, 17, 33}) {
    for (int64_t outputs : {1, 5, 8, 15, 16, 17, 32, 33, 65}) {
      Case c;
      c.channels = channels;
      c.outputs = outputs;
      c.height = 6;
      c.width = 5;
      Check(c);
    }
  }
}

TEST(more_channels_than_are_transformed_at_once) {
  for (int64_t channels : {63, 64, 65, 127, 128, 129, 257}) {
    Case c;
    c.channels = channels;
    c.outputs = 35;
    c.height = 9;
    c.width = 6;
    Check(c);
  }
}

TEST(sizes_of_images) {
  for (int64_t height = 1; height <= 10; ++height) {
    for (int64_t width = 1; width <= 10; ++width) {
      Case c;
      c.channels = 5;
      c.outputs = 3;
      c.height = height;
      c.width = width;
      Check(c);
    }
  }
}

TEST(pads) {
  for (int pads = 0; pads < 81; ++pads) {
    Case c;
    c.channels = 3;
    c.outputs = 2;
    c.height = 5;
    c.width = 6;
    c.top = pads % 3;
    c.bottom = pads / 3 % 3;
    c.left = pads / 9 % 3;
    c.right = pads / 27;
    Check(c);
  }
}

TEST(blocks_of_channels) {
  for (int64_t lanes : {8, 16}) {
    for (int64_t channels : {16, 48}) {
      for (int64_t outputs : {16, 80}) {
        if (lanes == 8 && channels == 48) continue;
        Case c;
        c.lanes = lanes;
        c.channels = channels;
        c.outputs = outputs;
        c.height = 9;
        c.width = 7;
        c.images = 2;
        Check(c);
      }
    }
  }
}

TEST(batches_threads_gaps_and_caches) {
  for (int threads : {1, 2, 3, 7}) {
    for (int64_t images : {1, 3}) {
      for (int64_t gap : {0, 5}) {
        for (int64_t cache : {1 << 12, 1 << 21}) {
          Case c;
          c.images = images;
          c.threads = threads;
          c.gap = gap;
          c.cache = cache;
          c.channels = 20;
          c.outputs = 70;
          c.height = 13;
          c.width = 11;
          Check(c);
        }
      }
    }
  }
}

TEST(many_tiles_and_channels) {
  Case c;
  c.channels = 130;
  c.outputs = 96;
  c.height = 22;
  c.width = 19;
  c.threads = 2;
  Check(c);
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      Case c;
      c.channels = 6;
      c.outputs = 21;
      c.height = 7;
      c.width = 6;
      c.bias = bias;
      c.post_ops = chain;
      Check(c);
    }
  }
}

TEST(a_nan_stays) {
  for (const Way& way : Ways()) {
    for (byoc_post_op_kind kind : {BYOC_RELU, BYOC_CLIP, BYOC_HARDSIGMOID, BYOC_HARDSWISH,
                                   BYOC_LOGISTIC, BYOC_SWISH, BYOC_ABS}) {
      std::vector<int64_t> params = Params(1);
      auto& w = *reinterpret_cast<byoc_winograd_params*>(params.data());
      w.isa = way.isa;
      w.m = way.m;
      w.late = way.late;
      w.post_ops = 1;
      w.images = w.channels = w.outputs = 1;
      w.height = w.width = w.out_height = w.out_width = 4;
      w.pad_top = w.pad_left = 1;
      w.src = w.dst = Strides(4, 4, 1, 0, 0);
      way.form->plan(&w, 1, 1 << 19);
      Guarded src(16), dst(16), weights(9), packed(way.form->packed_bytes(&w) / 4, 64);
      Guarded scratch(way.form->scratch_bytes(&w) / 4, 64);
      std::fill(src.data(), src.data() + 16, std::numeric_limits<float>::quiet_NaN());
      std::fill(weights.data(), weights.data() + 9, 1.f);
      byoc_post_op op{};
      op.kind = kind;
      op.alpha = 0.25f;
      op.beta = 0.5f;
      op.operand = -1;
      std::memcpy(&w + 1, &op, sizeof(op));
      void* const to_pack[] = {weights.data(), packed.data()};
      void* const data[] = {src.data(), packed.data(), dst.data()};
      char message[BYOC_ERROR_BYTES];
      way.form->pack(params.data(), to_pack, nullptr, 1, message);
      way.form->run(params.data(), data, scratch.data(), 1, message);
      CHECK(std::all_of(dst.data(), dst.data() + 16, [](float y) { return std::isnan(y); }));
    }
  }
}

}  // namespace
