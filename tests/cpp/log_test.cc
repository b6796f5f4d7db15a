// SPDX-License-Identifier: Apache-2.0
// The logarithm of float32 against the C library's in float64: numbers of every exponent, those
// near 1, and those that have none; each instruction set that this CPU has. An unreadable page lies
// behind every buffer.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_normalize.h"

namespace {

void Call(byoc_isa isa, int threads, const Guarded& from, Guarded* to) {
  const byoc_log_params p = {isa, static_cast<int64_t>(from.size())};
  std::vector<int64_t> params(sizeof(p) / sizeof(int64_t));
  std::memcpy(params.data(), &p, sizeof(p));
  void* const data[] = {const_cast<float*>(from.data()), to->data()};
  char message[BYOC_ERROR_BYTES];
  CHECK_EQUAL(byoc_log(params.data(), data, nullptr, threads, message), BYOC_OK);
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
    Call(isa, threads, x, &y);
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
    Call(isa, 1, x, &y);
    CHECK_EQUAL(y.data()[0], -infinity);
    CHECK_EQUAL(y.data()[1], -infinity);
    CHECK_EQUAL(y.data()[2], infinity);
    for (int i : {3, 4, 5}) CHECK(std::isnan(y.data()[i]));
  }
}

}  // namespace
