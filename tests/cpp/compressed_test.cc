// SPDX-License-Identifier: Apache-2.0
// Products with compressed weights against float64: both widths, with and without zero points,
// scales of both widths, every tail, few rows and many, each instruction set that this CPU has and
// plain C; and those with sources that are rounded to 8 bits, bit by bit. An unreadable page lies
// behind every buffer.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_compressed_matmul.h"
#include "kernels/byoc_compressed_plan.h"

namespace {

struct Call {
  byoc_compressed_params p;
  byoc_post_op post_ops[2];
};

/// Each number as float16 has it.
void Narrow(Guarded* numbers) {
  for (size_t i = 0; i < numbers->size(); ++i) {
    numbers->data()[i] = byoc_from_float16(byoc_to_float16(numbers->data()[i]));
  }
}

/// The largest error of a product, in units of the sum of the magnitudes of what is summed.
double WorstError(Call call, int threads) {
  byoc_compressed_params& p = call.p;
  p.threads = 2;
  const int64_t groups = p.depth / p.group, row_bytes = p.depth * p.bits / 8;
  std::mt19937 random(static_cast<unsigned>(p.rows * 31 + p.columns));
  std::vector<uint8_t> weights(static_cast<size_t>(p.columns * row_bytes));
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(random());
  const auto results = static_cast<size_t>(p.rows * p.columns);
  Guarded scales(static_cast<size_t>(p.columns * groups)), zeros(scales.size());
  Guarded src(static_cast<size_t>(p.rows * p.depth));
  Guarded bias(static_cast<size_t>(p.columns)), residual(results), dst(results);
  Fill({&scales, &src, &bias, &residual}, &random);
  if (p.scale_bits == 16) Narrow(&scales);
  for (size_t i = 0; i < zeros.size(); ++i) {
    zeros.data()[i] = static_cast<float>(static_cast<int>(random() % 16) - 8);
  }
  Guarded packed((static_cast<size_t>(byoc_compressed_packed_bytes(&p)) + 3) / 4, 64);
  Guarded scratch(static_cast<size_t>(2 * byoc_compressed_thread_floats(&p)), 64);
  const auto* params = reinterpret_cast<const int64_t*>(&call);
  void* to_pack[] = {weights.data(), scales.data(), packed.data(), nullptr};
  if (p.has_zero_points) {
    to_pack[2] = zeros.data();
    to_pack[3] = packed.data();
  }
  byoc_compressed_pack(params, to_pack, nullptr, threads, nullptr);
  void* data[] = {src.data(), packed.data(), bias.data(), residual.data(), dst.data()};
  if (p.post_ops == 0) data[2] = dst.data();
  byoc_compressed_matmul(params, data, scratch.data(), threads, nullptr);

  double worst = 0;
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.columns; ++n) {
      double sum = p.post_ops == 0 ? 0 : bias.data()[n] + residual.data()[m * p.columns + n];
      double magnitude = 1;
      for (int64_t k = 0; k < p.depth; ++k) {
        const uint8_t byte = weights[n * row_bytes + k * p.bits / 8];
        const int number =
            p.bits == 8 ? static_cast<int8_t>(byte) : ((byte >> k % 2 * 4 & 15) ^ 8) - 8;
        const int64_t g = n * groups + k / p.group;
        const double weight =
            (number - (p.has_zero_points ? zeros.data()[g] : 0.)) * scales.data()[g];
        const double term = src.data()[m * p.depth + k] * weight;
        sum += term;
        magnitude += std::fabs(term);
      }
      const double error = std::fabs(dst.data()[m * p.columns + n] - sum) / magnitude;
      if (!(error <= worst)) worst = error;  // a NaN as well
    }
  }
  return worst;
}

/// Plain C, which is 0, and the instruction sets of this CPU.
std::vector<int64_t> Implementations() {
  std::vector<int64_t> all = {0};
  for (byoc_isa isa : InstructionSets()) all.push_back(isa);
  return all;
}

#if BYOC_HAS_VNNI
bool HasVnniForAvx2() { return __builtin_cpu_supports("avxvnni") > 0; }
#endif

/// Where a product of integers runs: an instruction set, with or without VNNI.
struct Place {
  int64_t isa, has_vnni;
};
std::vector<Place> IntegerPlaces() {
  std::vector<Place> places;
  for (int64_t isa : Implementations()) {
    places.push_back({isa, 0});
#if BYOC_HAS_VNNI
    const bool has_vnni = isa == BYOC_AVX512 ? __builtin_cpu_supports("avx512vnni") > 0
                                             : HasVnniForAvx2() && isa == BYOC_AVX2;
    if (has_vnni) places.push_back({isa, 1});
#endif
  }
  return places;
}

/// A source as the definition rounds it: a scale and whole numbers for each group.
struct Rounded {
  std::vector<float> scales;
  std::vector<int64_t> numbers;
};
Rounded Round(const Guarded& src, int64_t group) {
  Rounded rounded;
  for (size_t first = 0; first < src.size(); first += static_cast<size_t>(group)) {
    float largest = 0;
    for (int64_t k = 0; k < group; ++k)
      largest = std::fmax(largest, std::fabs(src.data()[first + k]));
    const float scale = std::fmax(largest / 127.f, std::numeric_limits<float>::min());
    rounded.scales.push_back(scale);
    const float inverse = 1.f / scale;
    for (int64_t k = 0; k < group; ++k) {
      const float scaled = src.data()[first + k] * inverse;
      rounded.numbers.push_back(std::lrint(scaled));  // ties to even
    }
  }
  return rounded;
}

/// The results of a product of rounded sources that differ from the definition: in any bit, or,
/// without vectors, by more than the rounding of its sums. `outlier`: a number in the second group
/// of the last row.
int64_t WrongResults(const byoc_compressed_params& given, int threads,
                     std::optional<float> outlier = std::nullopt) {
  Call call{};
  byoc_compressed_params& p = call.p;
  p = given;
  p.threads = 3;
  p.rounds = 1;
  const int64_t groups = p.depth / p.group, row_bytes = p.depth * p.bits / 8;
  std::mt19937 random(static_cast<unsigned>(p.rows * 31 + p.columns + p.group));
  std::vector<uint8_t> weights(static_cast<size_t>(p.columns * row_bytes));
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < weights.size(); i += 3) weights[i] = 0x80;  // the least number often
  Guarded scales(static_cast<size_t>(p.columns * groups)), zeros(scales.size());
  Guarded src(static_cast<size_t>(p.rows * p.depth));
  Guarded dst(static_cast<size_t>(p.rows * p.columns));
  Fill({&scales, &src}, &random);
  if (p.scale_bits == 16) Narrow(&scales);
  for (int64_t k = 0; k < p.depth; k += 5) src.data()[k] = 0.5f;  // ties and equal largest numbers
  std::fill(src.data(), src.data() + p.group, 0.f);
  if (outlier) src.data()[(p.rows - 1) * p.depth + p.group + 3] = *outlier;
  const int range = p.bits == 8 ? 256 : 16;
  for (size_t i = 0; i < zeros.size(); ++i) {
    zeros.data()[i] = static_cast<float>(static_cast<int>(random() % range) - range / 2);
  }
  Guarded packed((static_cast<size_t>(byoc_compressed_packed_bytes(&p)) + 3) / 4, 64);
  Guarded scratch((static_cast<size_t>(byoc_compressed_scratch_bytes(&p)) + 3) / 4, 64);
  const auto* params = reinterpret_cast<const int64_t*>(&call);
  void* to_pack[] = {weights.data(), scales.data(), packed.data(), nullptr};
  if (p.has_zero_points) {
    to_pack[2] = zeros.data();
    to_pack[3] = packed.data();
  }
  byoc_compressed_pack(params, to_pack, nullptr, threads, nullptr);
  void* data[] = {src.data(), packed.data(), dst.data()};
  byoc_compressed_matmul(params, data, scratch.data(), threads, nullptr);

  const Rounded rounded = Round(src, p.group);
  int64_t wrong = 0;
  for (int64_t m = 0; m < p.rows; ++m) {
    const bool is_lost = outlier && !std::isfinite(*outlier) && m == p.rows - 1;
    for (int64_t n = 0; n < p.columns; ++n) {
      float sum = 0, magnitude = 0;
      for (int64_t g = 0; g < groups; ++g) {
        int64_t products = 0, numbers = 0;
        const int64_t at = n * groups + g;
        for (int64_t k = g * p.group; k < (g + 1) * p.group; ++k) {
          const uint8_t byte = weights[n * row_bytes + k * p.bits / 8];
          const int64_t weight =
              p.bits == 8 ? static_cast<int8_t>(byte) : ((byte >> k % 2 * 4 & 15) ^ 8) - 8;
          products += rounded.numbers[m * p.depth + k] * weight;
          numbers += rounded.numbers[m * p.depth + k];
        }
        const float zero = p.has_zero_points ? zeros.data()[at] : 0;
        const float centred =
            std::fma(-zero, static_cast<float>(numbers), static_cast<float>(products));
        const float of_group = centred * scales.data()[at];
        sum = std::fma(rounded.scales[m * groups + g], of_group, sum);
        magnitude += std::fabs(rounded.scales[m * groups + g] * of_group);
      }
      const float got = dst.data()[m * p.columns + n];
      const bool is_right = is_lost      ? std::isnan(got)
                            : p.isa == 0 ? std::fabs(got - sum) <= 1e-6f * magnitude
                                         : got == sum;
      wrong += is_right ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace

TEST(ProductsOfRoundedSourcesAreExact) {
  for (const Place& place : IntegerPlaces()) {
    for (int64_t bits : {4, 8}) {
      for (int64_t zeros : {0, 1}) {
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 131}) {
          for (int64_t columns : {1, 37, 64, 130}) {
            for (int64_t group : {8, 16, 32}) {
              const byoc_compressed_params p = {
                  place.isa, rows,  /*depth=*/96,          columns, group,
                  bits,      zeros, group == 16 ? 16 : 32, 1,       place.has_vnni,
                  0,         0};
              CHECK(WrongResults(p, static_cast<int>(columns % 3 + 1)) == 0);
            }
          }
        }
      }
    }
  }
}

TEST(ProductsOfRoundedSourcesInLongGroupsAreExact) {
  for (const Place& place : IntegerPlaces()) {
    for (int64_t bits : {4, 8}) {
      for (int64_t group : {24, 48, 64, 128, 256, 768}) {
        for (int64_t rows : {1, 9}) {
          const byoc_compressed_params p = {place.isa,
                                            rows,
                                            /*depth=*/2 * 768,
                                            /*columns=*/70,
                                            group,
                                            bits,
                                            /*zeros=*/1,
                                            group % 64 ? 32 : 16,
                                            1,
                                            place.has_vnni,
                                            0,
                                            0};
          CHECK(WrongResults(p, 2) == 0);
        }
      }
    }
  }
}

TEST(OutliersOfRoundedSources) {
  for (const Place& place : IntegerPlaces()) {
    for (float outlier : {1e37f, 1e-40f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
      for (int64_t rows : {1, 8}) {
        const byoc_compressed_params p = {place.isa,      rows,
                                          /*depth=*/96,
                                          /*columns=*/70,
                                          /*group=*/32,   4,    1, 16, 1, place.has_vnni, 0, 0};
        CHECK(WrongResults(p, 2, outlier) == 0);
      }
    }
  }
}

TEST(EveryTailOfAProductWithCompressedWeights) {
  for (int64_t isa : Implementations()) {
    for (int64_t bits : {4, 8}) {
      for (int64_t zeros : {0, 1}) {
        for (int64_t rows : {1, 2, 3, 4, 5, 7, 16, 131}) {
          for (int64_t columns : {1, 37, 64, 130}) {
            for (int64_t group : {8, 32}) {
              Call call{};
              call.p = {isa,  rows,          /*depth=*/96,         columns, group,
                        bits, zeros,         group == 8 ? 16 : 32, 0,       0,
                        0,    /*post_ops=*/0};
              CHECK(WorstError(call, columns % 2 + 1) < 1e-6);
            }
          }
        }
      }
    }
  }
}

TEST(LongGroupsAndManyBlocks) {
  for (int64_t isa : Implementations()) {
    for (int64_t group : {64, 128, 1024}) {
      for (int64_t rows : {1, 9, 20}) {
        Call call{};
        call.p = {isa, rows, /*depth=*/1024, /*columns=*/70, group, /*bits=*/4, 1, 16, 0, 0, 0, 0};
        CHECK(WorstError(call, 2) < 1e-6);
      }
    }
  }
}

TEST(PostOperationsOfAProductWithCompressedWeights) {
  for (int64_t isa : Implementations()) {
    if (isa == 0) continue;  // the engine applies them apart
    for (int64_t rows : {1, 6}) {
      Call call{};
      call.p = {isa, rows, /*depth=*/64, /*columns=*/75, /*group=*/32, /*bits=*/8, 0, 32, 0, 0,
                0,   2};
      call.post_ops[0].kind = call.post_ops[1].kind = BYOC_ADD;
      call.post_ops[0].operand = 2;
      call.post_ops[0].form = BYOC_PER_CHANNEL;
      call.post_ops[1].operand = 3;
      call.post_ops[1].form = BYOC_PER_ELEMENT;
      call.post_ops[1].strides = {0, 0, call.p.columns, 0, call.p.columns};
      CHECK(WorstError(call, 2) < 1e-6);
    }
  }
}
