// SPDX-License-Identifier: Apache-2.0
// Operations on single elements against float64: chains with operands of each form, in each order
// of channels and pixels; bounds of a NaN; the logarithm of numbers of every exponent, those near
// 1, and those that have none. Each instruction set that this CPU has. An unreadable page lies
// behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_elementwise.h"

namespace {

byoc_post_op Operation(byoc_post_op_kind kind, float alpha = 0, float beta = 0,
                       byoc_operand form = BYOC_PER_TENSOR) {
  byoc_post_op op{};
  op.kind = kind;
  op.alpha = alpha;
  op.beta = beta;
  op.operand = -1;
  op.form = form;
  return op;
}

/// `data`: the source and the operands.
void Call(byoc_elementwise_params p, const std::vector<byoc_post_op>& operations, int threads,
          std::vector<void*> data, Guarded* to) {
  p.threads = threads;
  p.operations = static_cast<int64_t>(operations.size());
  std::vector<int64_t> params((sizeof(p) + operations.size() * sizeof(byoc_post_op)) /
                              sizeof(int64_t));
  std::memcpy(params.data(), &p, sizeof(p));
  std::memcpy(params.data() + sizeof(p) / sizeof(int64_t), operations.data(),
              operations.size() * sizeof(byoc_post_op));
  data.push_back(to->data());
  char message[BYOC_ERROR_BYTES];
  CHECK_EQUAL(byoc_elementwise(params.data(), data.data(), nullptr, threads, message), BYOC_OK);
}

byoc_elementwise_params Flat(byoc_isa isa, size_t count) {
  const auto elements = static_cast<int64_t>(count);
  return {isa, elements, byoc_lanes(isa), byoc_max(elements / byoc_lanes(isa), 1), 1, 1, 0};
}

void CallLog(byoc_isa isa, int threads, const Guarded& from, Guarded* to) {
  Call(Flat(isa, from.size()), {Operation(BYOC_LOG)}, threads, {const_cast<float*>(from.data())},
       to);
}

/// A chain with operands of each form, on `images` of `blocks` of `channels` for some pixels.
void CheckChain(int64_t images, int64_t blocks, int64_t channels, int64_t pixels, int threads) {
  for (byoc_isa isa : InstructionSets()) {
    std::mt19937 random(1);
    const auto count = static_cast<size_t>(images * blocks * channels * pixels);
    Guarded x(count), y(count);
    Fill({&x}, &random);
    Operands operands(static_cast<size_t>(blocks * channels), count, &random);
    std::vector<byoc_post_op> chain = {
        Operation(BYOC_MAX, 0, 0, BYOC_PER_ELEMENT), Operation(BYOC_RELU, 0.25f),
        Operation(BYOC_MUL, 0, 0, BYOC_PER_CHANNEL), Operation(BYOC_CLIP, -0.5f, 0.75f),
        Operation(BYOC_DIV, 0, 0, BYOC_PER_TENSOR)};
    std::vector<void*> data = {x.data()};
    operands.Bind({0, channels, 0, 0, channels}, &chain, &data);
    Call({isa, static_cast<int64_t>(count), channels, pixels, blocks, 1, 0}, chain, threads, data,
         &y);
    double error = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
      const int64_t channel = i / (pixels * channels) % blocks * channels + i % channels;
      const double want = operands.Apply(chain, x.data()[i], channel, i);
      error = Worse(error, std::abs(y.data()[i] - want));
    }
    CHECK(error <= 1e-6);  // three roundings of numbers of about 1
  }
}

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// The largest error in units in the last place, for the numbers with these bits.
void Check(uint32_t first, uint32_t step, size_t count, int threads) {
  for (byoc_isa isa : InstructionSets()) {
    Guarded x(count), y(count);
    for (size_t i = 0; i < count; ++i) {
      x.data()[i] = FromBits(first + step * static_cast<uint32_t>(i));
    }
    CallLog(isa, threads, x, &y);
    double error = 0;
    for (size_t i = 0; i < count; ++i) {
      const double want = std::log(static_cast<double>(x.data()[i]));
      const float nearest = static_cast<float>(want);
      if (y.data()[i] == nearest) continue;
      const float size = std::abs(nearest);
      const double unit = std::nextafter(size, std::numeric_limits<float>::infinity()) - size;
      error = Worse(error, std::abs(y.data()[i] - want) / unit);
    }
    CHECK(error < 0.5001);
  }
}

TEST(chains_in_each_order) {
  for (int64_t channels : {1, 3, 8, 16, 17, 40}) {
    for (int64_t pixels : {1, 7, 8, 65}) {
      CheckChain(1, 1, channels, pixels, 1);
      CheckChain(2, 3, channels, pixels, 2);
    }
  }
  CheckChain(1, 1, 64, 128, 3);
}

TEST(a_nan_passes_each_bound) {
  const float nan = std::nanf("");
  for (byoc_isa isa : InstructionSets()) {
    for (size_t count : {1, 5, 16, 150}) {
      Guarded x(count), y(count), other(count);
      std::fill(x.data(), x.data() + count, nan);
      std::fill(other.data(), other.data() + count, 2.f);
      for (byoc_post_op_kind kind : {BYOC_RELU, BYOC_CLIP, BYOC_HARDSIGMOID, BYOC_MAX, BYOC_MIN}) {
        byoc_post_op op = Operation(kind, kind == BYOC_RELU ? 0.f : 1.f, 6);
        std::vector<void*> data = {x.data()};
        if (kind >= BYOC_ADD) {
          op.operand = 1;
          op.form = BYOC_PER_ELEMENT;
          op.strides = {0, byoc_lanes(isa), 0, 0, byoc_lanes(isa)};
          data.push_back(other.data());
        }
        Call(Flat(isa, count), {op}, 1, data, &y);
        CHECK(std::all_of(y.data(), y.data() + count, [](float v) { return std::isnan(v); }));
        if (kind < BYOC_ADD) continue;
        std::swap(data[0], data[1]);
        Call(Flat(isa, count), {op}, 1, data, &y);
        CHECK(std::all_of(y.data(), y.data() + count, [](float v) { return std::isnan(v); }));
      }
    }
  }
}

TEST(numbers_of_every_exponent) {
  const uint32_t step = 20011;
  Check(1, step, 0x7f800000u / step, 1);
  Check(1, step, 0x7f800000u / step, 3);
}

TEST(denormal_numbers) { Check(1, 997, 0x00800000u / 997, 1); }

TEST(numbers_near_1) { Check(0x3f800000u - 40000, 1, 80000, 1); }

TEST(powers_of_two) { Check(0, 0x00800000u, 255, 1); }

TEST(every_tail) {
  for (size_t count = 1; count <= 33; ++count) Check(0x40000000u, 12345, count, 1);
}

TEST(numbers_without_a_logarithm) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (byoc_isa isa : InstructionSets()) {
    Guarded x(6), y(6);
    const float special[] = {0.f, -0.f, infinity, -infinity, -1e-42f, std::nanf("")};
    std::copy(std::begin(special), std::end(special), x.data());
    CallLog(isa, 1, x, &y);
    CHECK_EQUAL(y.data()[0], -infinity);
    CHECK_EQUAL(y.data()[1], -infinity);
    CHECK_EQUAL(y.data()[2], infinity);
    for (int i : {3, 4, 5}) CHECK(std::isnan(y.data()[i]));
  }
}

}  // namespace
