// SPDX-License-Identifier: Apache-2.0
// Winograd's convolution against a direct one in float64: every tail of every dimension, both sizes
// of tiles, kernels of 3x3 and 5x5, strides, groups, both ways to divide the work, each instruction
// set that this CPU has, and products by parts of bfloat16 where it has AMX. An unreadable page
// lies behind every buffer.
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
#if BYOC_HAS_AMX
#include "kernels/byoc_split_winograd.h"
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

/// A way to compute a convolution of square kernels; m: results of a tile and axis.
struct Way {
  const Form* form;
  byoc_isa isa;
  int m;
  const char* name;
  bool late = false;  // each call transforms the weights
  int64_t kernel = 3, stride = 1;

  bool Pads(int64_t size, int64_t pads) const { return size + pads >= kernel; }
  int64_t Results(int64_t size, int64_t pads) const { return (size + pads - kernel) / stride + 1; }
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (byoc_isa isa : InstructionSets()) {
    const char* name = isa == BYOC_AVX2 ? "avx2" : "avx512";
    for (int m : {4, 2}) ways.push_back({&kFloat32, isa, m, name});
    ways.push_back({&kFloat32, isa, 4, name, true});
    ways.push_back({&kFloat32, isa, 2, name, false, 5});
    ways.push_back({&kFloat32, isa, 4, name, false, 5, 2});
  }
#if BYOC_HAS_AMX
  if (HasTiles()) ways.push_back({&kParts, BYOC_AVX512, 4, "parts on AMX"});
#endif
  return ways;
}

struct Case {
  int64_t images = 1, groups = 1, height = 4, width = 4;
  int64_t channels = 1, outputs = 1;  // of a group
  int64_t top = 1, bottom = 1, left = 1, right = 1;
  int64_t lanes = 0;  // of a block of channels; 0: channels last
  int64_t gap = 0;    // floats between the pixels of the result (channels last only)
  bool over_outputs = false;
  int threads = 1;
  int64_t cache = 1 << 19;
  bool bias = true;
  std::vector<byoc_post_op> post_ops;

  int64_t AllChannels() const { return groups * channels; }
  int64_t AllOutputs() const { return groups * outputs; }
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
  w.kernel = way.kernel;
  w.stride = way.stride;
  w.late = way.late;
  w.images = c.images;
  w.groups = c.groups;
  w.channels = c.channels;
  w.height = c.height;
  w.width = c.width;
  w.outputs = c.outputs;
  w.out_height = way.Results(c.height, c.top + c.bottom);
  w.out_width = way.Results(c.width, c.left + c.right);
  w.pad_top = c.top;
  w.pad_left = c.left;
  w.src = Strides(c.height, c.width, c.AllChannels(), c.lanes, 0);
  w.dst = Strides(w.out_height, w.out_width, c.AllOutputs(), c.lanes, c.gap);
  w.has_bias = c.bias;
  w.post_ops = static_cast<int64_t>(c.post_ops.size());
  way.form->plan(&w, c.threads, c.cache);
  w.over_outputs = c.over_outputs;

  Guarded src(Size(w.src, c.images)), dst(Size(w.dst, c.images) - static_cast<size_t>(c.gap));
  const int64_t taps = way.kernel * way.kernel;
  Guarded weights(static_cast<size_t>(c.AllOutputs() * c.channels * taps));
  Guarded bias(static_cast<size_t>(c.AllOutputs()));
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

  const Window window = {c.height,   c.width, way.kernel, way.kernel, way.stride,
                         way.stride, 1,       1,          c.top,      c.left};
  Comparison results(dst);
  const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
    const int64_t first = o / c.outputs * c.channels;
    double sum = c.bias ? bias.data()[o] : 0;
    ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
      for (int64_t k = 0; k < c.channels; ++k) {
        sum += static_cast<double>(src.data()[Offset(w.src, n, sy, sx, first + k)]) *
               weights.data()[(o * c.channels + k) * taps + i * way.kernel + j];
      }
    });
    results.Expect(at, operands.Apply(post_ops, sum, o, at));
  };
  ForEachResult(w.dst, c.images, w.out_height, w.out_width, c.AllOutputs(), expect);
  return results.Error();
}

// Six points lose about three bits, four points less than one: 2e-6 and 5e-7 were seen for 64
// channels.
double Tolerance(const Way& way) { return way.m == 2 && way.kernel == 3 ? 2e-6 : 1e-5; }

/// Whether the kernel takes such a case. A vector of AVX-512 is wider than a block of eight; phases
/// are whole vectors of channels, and so are groups in blocks. Products by parts have no groups.
bool Takes(const Way& way, const Case& c) {
  const int64_t lanes = byoc_lanes(way.isa);
  if (c.lanes != 0 && (c.lanes % lanes != 0 || (c.groups > 1 && c.channels % lanes != 0))) {
    return false;
  }
  return way.Pads(c.height, c.top + c.bottom) && way.Pads(c.width, c.left + c.right) &&
         (way.stride == 1 || c.channels % lanes == 0) && (c.groups == 1 || way.form == &kFloat32);
}

void Check(const Case& c) {
  for (const Way& way : Ways()) {
    if (!Takes(way, c)) continue;
    for (bool over_outputs : {false, true}) {
      Case variant = c;
      variant.over_outputs = over_outputs;
      const double error = Error(variant, way);
      if (error <= Tolerance(way)) continue;
      check::Failed(__FILE__, __LINE__,
                    std::string(way.name) + (way.late ? ", late" : "") + ", m " +
                        std::to_string(way.m) + ", kernel " + std::to_string(way.kernel) +
                        ", groups " + std::to_string(c.groups) + ", over outputs " +
                        std::to_string(over_outputs) + ", channels " + std::to_string(c.channels) +
                        ", outputs " + std::to_string(c.outputs) + ", image " +
                        std::to_string(c.height) + " x " + std::to_string(c.width) + ": error " +
                        check::Show(error));
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
  for (int64_t channels : {3, 16}) {
    for (int pads = 0; pads < 81; ++pads) {
      Case c;
      c.channels = channels;
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
}

TEST(phases_of_strided_images) {
  for (int64_t height = 4; height <= 13; ++height) {
    for (int64_t width : {4, 7, 12}) {
      for (int64_t outputs : {1, 19}) {
        Case c;
        c.channels = 16;
        c.outputs = outputs;
        c.height = height;
        c.width = width;
        c.bottom = 2;
        Check(c);
      }
    }
  }
}

TEST(groups) {
  for (int64_t groups : {2, 3}) {
    for (int64_t channels : {9, 16, 32}) {
      for (int64_t outputs : {8, 17, 32}) {
        for (int64_t lanes : {0, 8, 16}) {
          for (int threads : {1, 2}) {
            Case c;
            c.groups = groups;
            c.channels = channels;
            c.outputs = outputs;
            c.lanes = lanes;
            c.height = 9;
            c.width = 7;
            c.threads = threads;
            const bool whole = lanes == 0 || (channels % lanes == 0 && outputs % lanes == 0);
            if (whole) Check(c);
          }
        }
      }
    }
  }
  for (const auto& chain : PostOpChains()) {
    Case c;
    c.groups = 2;
    c.channels = 4;
    c.outputs = 13;
    c.height = 7;
    c.width = 6;
    c.post_ops = chain;
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
          for (int64_t channels : {20, 32}) {
            Case c;
            c.images = images;
            c.threads = threads;
            c.gap = gap;
            c.cache = cache;
            c.channels = channels;
            c.outputs = 70;
            c.height = 13;
            c.width = 11;
            Check(c);
          }
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
      w.kernel = way.kernel;
      w.stride = way.stride;
      w.late = way.late;
      w.post_ops = 1;
      w.images = w.groups = w.outputs = 1;
      w.channels = 16;
      w.height = w.width = 4;
      w.out_height = w.out_width = way.Results(4, way.kernel - 1);
      w.pad_top = w.pad_left = way.kernel / 2;
      w.src = Strides(4, 4, 16, 0, 0);
      w.dst = Strides(w.out_height, w.out_width, 1, 0, 0);
      way.form->plan(&w, 1, 1 << 19);
      const auto taps = static_cast<size_t>(way.kernel * way.kernel);
      Guarded src(16 * 16), dst(Size(w.dst, 1)), weights(16 * taps),
          packed(way.form->packed_bytes(&w) / 4, 64);
      Guarded scratch(way.form->scratch_bytes(&w) / 4, 64);
      std::fill(src.data(), src.data() + src.size(), std::numeric_limits<float>::quiet_NaN());
      std::fill(weights.data(), weights.data() + weights.size(), 1.f);
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
      CHECK(
          std::all_of(dst.data(), dst.data() + dst.size(), [](float y) { return std::isnan(y); }));
    }
  }
}

}  // namespace
