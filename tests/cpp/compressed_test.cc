// SPDX-License-Identifier: Apache-2.0
// Products with compressed weights against float64: both widths, with and without zero points,
// every tail, few rows and many, each instruction set that this CPU has and plain C.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/byoc_compressed_matmul.h"
#include "kernels/byoc_compressed_pack.h"

namespace {

struct Call {
  byoc_compressed_params p;
  byoc_post_op post_ops[2];
};

/// The largest error of a product, in units of the sum of the magnitudes of what is summed.
double WorstError(Call call, int threads) {
  byoc_compressed_params& p = call.p;
  p.threads = 2;
  const int64_t groups = p.depth / p.group, row_bytes = p.depth * p.bits / 8;
  std::mt19937 random(static_cast<unsigned>(p.rows * 31 + p.columns));
  std::uniform_real_distribution<float> real(-1, 1);
  auto reals = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = real(random);
    return values;
  };
  std::vector<uint8_t> weights(static_cast<size_t>(p.columns * row_bytes));
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(random());
  std::vector<float> scales = reals(p.columns * groups), src = reals(p.rows * p.depth);
  std::vector<float> bias = reals(p.columns), residual = reals(p.rows * p.columns);
  std::vector<float> zeros(scales.size());
  for (float& zero : zeros) zero = static_cast<float>(static_cast<int>(random() % 16) - 8);
  // A few numbers behind what is written, which must stay.
  std::vector<float> dst(static_cast<size_t>(p.rows * p.columns + 32), 77);
  std::vector<char> packed(static_cast<size_t>(byoc_compressed_packed_bytes(&p)));
  std::vector<float> scratch(static_cast<size_t>(2 * byoc_compressed_thread_floats(&p)));
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
      double sum = p.post_ops == 0 ? 0 : bias[n] + residual[m * p.columns + n];
      double magnitude = 1;
      for (int64_t k = 0; k < p.depth; ++k) {
        const uint8_t byte = weights[n * row_bytes + k * p.bits / 8];
        const int number =
            p.bits == 8 ? static_cast<int8_t>(byte) : ((byte >> k % 2 * 4 & 15) ^ 8) - 8;
        const int64_t g = n * groups + k / p.group;
        const double weight = (number - (p.has_zero_points ? zeros[g] : 0.)) * scales[g];
        sum += src[m * p.depth + k] * weight;
        magnitude += std::fabs(src[m * p.depth + k] * weight);
      }
      worst = std::fmax(worst, std::fabs(dst[m * p.columns + n] - sum) / magnitude);
    }
  }
  for (int i = 0; i < 32; ++i) CHECK_EQUAL(dst[p.rows * p.columns + i], 77);
  return worst;
}

std::vector<int64_t> InstructionSets() {
  std::vector<int64_t> sets = {0};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(BYOC_AVX2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    sets.push_back(BYOC_AVX512);
  return sets;
}

}  // namespace

TEST(EveryTailOfAProductWithCompressedWeights) {
  for (int64_t isa : InstructionSets()) {
    for (int64_t bits : {4, 8}) {
      for (int64_t zeros : {0, 1}) {
        for (int64_t rows : {1, 2, 3, 4, 5, 7, 16, 131}) {
          for (int64_t columns : {1, 37, 64, 130}) {
            for (int64_t group : {8, 32}) {
              Call call{};
              call.p = {isa, rows, /*depth=*/96, columns, group, bits, zeros, 0, /*post_ops=*/0};
              CHECK(WorstError(call, columns % 2 + 1) < 1e-6);
            }
          }
        }
      }
    }
  }
}

TEST(LongGroupsAndManyBlocks) {
  for (int64_t isa : InstructionSets()) {
    for (int64_t group : {64, 128, 1024}) {
      for (int64_t rows : {1, 9}) {
        Call call{};
        call.p = {isa, rows, /*depth=*/1024, /*columns=*/70, group, /*bits=*/4, 1, 0, 0};
        CHECK(WorstError(call, 2) < 1e-6);
      }
    }
  }
}

TEST(PostOperationsOfAProductWithCompressedWeights) {
  for (int64_t isa : InstructionSets()) {
    if (isa == 0) continue;  // the engine applies them apart
    for (int64_t rows : {1, 6}) {
      Call call{};
      call.p = {isa, rows, /*depth=*/64, /*columns=*/75, /*group=*/32, /*bits=*/8, 0, 0, 2};
      call.post_ops[0].kind = call.post_ops[1].kind = BYOC_ADD;
      call.post_ops[0].operand = 2;
      call.post_ops[0].form = BYOC_PER_CHANNEL;
      call.post_ops[1].operand = 3;
      call.post_ops[1].form = BYOC_PER_ELEMENT;
      call.post_ops[1].strides.row = call.p.columns;
      CHECK(WorstError(call, 2) < 1e-6);
    }
  }
}
