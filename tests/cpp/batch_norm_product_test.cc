// SPDX-License-Identifier: Apache-2.0
// The product of what a batch normalisation makes against float64: tails of parts, rows and
// columns, blocks of rows, strided pixels, threads, each instruction set that this CPU has. An
// unreadable page lies behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/byoc_batch_norm.h"
#include "kernels/byoc_product.h"
#include "norm_check.h"

namespace {

struct Case {
  std::vector<int64_t> channels = {7};  // of each part
  int64_t rows = 1, columns = 1;
  int64_t line_rows = 0;             // rows in each line of pixels, 0 for all of them in one
  int64_t stride = 1, line_gap = 0;  // from pixel to pixel, and behind each of these lines
  int64_t gap = 0;                   // floats between the rows of the result
  int threads = 1;
  bool bias = true, relu = true;
  std::vector<byoc_post_op> post_ops;
};

byoc_convolution Described(const Case& c, byoc_isa isa, int64_t depth) {
  byoc_convolution p = Product(isa, c.threads, c.rows, c.line_rows, depth, c.columns);
  p.src.pixel = c.stride;
  p.src.row = p.out_width * c.stride + c.line_gap;
  p.dst.pixel = c.columns + c.gap;
  p.weights = {0, depth, 1, 0};
  p.has_bias = c.bias;
  p.post_ops = static_cast<int64_t>(c.post_ops.size());
  return p;
}

/// Runs a case and returns the largest error, as a share of the largest result.
double Error(const Case& c, byoc_isa isa, std::vector<float>* result = nullptr) {
  std::mt19937 random(7);
  int64_t depth = 0;
  for (int64_t count : c.channels) depth += count;
  const byoc_convolution p = Described(c, isa, depth);
  Parts parts(c.channels, byoc_product_place(&p, c.rows - 1) + 1, c.relu);
  const auto columns = static_cast<size_t>(c.columns);
  Guarded weights(columns * static_cast<size_t>(depth)), bias(columns);
  Guarded dst(static_cast<size_t>(c.rows * p.dst.pixel - c.gap));
  Guarded packed(byoc_product_packed_bytes(&p) / 4, 64);
  Guarded scratch(byoc_batch_norm_product_scratch_bytes(&p) / 4, 64);
  Fill({&weights, &bias}, &random);
  Operands operands(columns, dst.size(), &random);

  // Post-operations count the operands from where the product finds its source.
  std::vector<byoc_post_op> post_ops = c.post_ops;
  std::vector<void*> of_product = {nullptr, packed.data()};
  if (c.bias) of_product.push_back(bias.data());
  const byoc_strides strides = {0, 0, p.dst.pixel, 0, p.outputs};
  operands.Bind(strides, &post_ops, &of_product);
  of_product.push_back(dst.data());
  std::vector<void*> data = parts.Data();
  data.insert(data.end(), of_product.begin() + 1, of_product.end());

  std::vector<int64_t> params((sizeof(p) + post_ops.size() * sizeof(byoc_post_op)) /
                              sizeof(int64_t));
  std::memcpy(params.data(), &p, sizeof(p));
  std::copy(post_ops.begin(), post_ops.end(),
            reinterpret_cast<byoc_post_op*>(params.data() + sizeof(p) / sizeof(int64_t)));
  const std::vector<int64_t> of_norm = parts.Params(isa, c.threads);
  params.insert(params.end(), of_norm.begin(), of_norm.end());
  void* const pack_data[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_product_pack(params.data(), pack_data, nullptr, 1, message) == BYOC_OK);
  CHECK(byoc_batch_norm_product(params.data(), data.data(), scratch.data(), c.threads, message) ==
        BYOC_OK);

  double largest = 0, error = 0;
  for (int64_t m = 0; m < c.rows; ++m) {
    const int64_t pixel = byoc_product_place(&p, m);
    for (int64_t n = 0; n < c.columns; ++n) {
      double sum = c.bias ? bias.data()[n] : 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += parts.Exact(pixel, k) * weights.data()[n * depth + k];
      }
      sum = operands.Apply(post_ops, sum, n, m * p.dst.pixel + n);
      largest = std::max(largest, std::abs(sum));
      const float got = dst.data()[m * p.dst.pixel + n];
      error = Worse(error, std::abs(sum - got));
      if (result != nullptr) result->push_back(got);
    }
    for (int64_t n = c.columns; n < p.dst.pixel && m + 1 < c.rows; ++n) {
      if (dst.data()[m * p.dst.pixel + n] != Guarded::kUntouched) return INFINITY;
    }
  }
  return error / std::max(largest, 1e-30);
}

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    const double error = Error(c, isa);
    if (!(error <= 2e-6)) {
      check::Failed(__FILE__, __LINE__,
                    "instruction set " + std::to_string(isa) + ", parts " +
                        std::to_string(c.channels.size()) + ", rows " + std::to_string(c.rows) +
                        ", columns " + std::to_string(c.columns) + ", threads " +
                        std::to_string(c.threads) + ": error " + check::Show(error));
    }
  }
}

TEST(rows_and_columns) {
  for (int64_t rows = 1; rows <= 19; ++rows) {
    for (int64_t columns : {1, 8, 15, 16, 17, 31, 32, 33, 48, 64, 95}) {
      Case c;
      c.rows = rows;
      c.columns = columns;
      Check(c);
      c.bias = c.relu = false;
      c.gap = 3;
      Check(c);
    }
  }
}

TEST(every_tail_of_the_parts) {
  for (int64_t first : {1, 7, 8, 15, 16, 17, 33}) {
    for (int64_t second : {1, 5, 16, 31}) {
      for (bool relu : {false, true}) {
        Case c;
        c.channels = {first, second, 32, 3};
        c.rows = 5;
        c.columns = 40;
        c.relu = relu;
        Check(c);
      }
    }
  }
}

TEST(blocks_of_rows_and_depths) {
  for (int64_t rows : {143, 144, 145, 300}) {
    for (int64_t parts : {1, 40}) {
      Case c;
      c.channels.assign(static_cast<size_t>(parts), 32);
      c.rows = rows;
      c.columns = 70;
      c.threads = 2;
      c.gap = 5;
      Check(c);
    }
  }
}

TEST(strided_pixels) {
  for (int64_t rows : {1, 5, 12, 301}) {
    for (int64_t line_rows : {1, 5, 14}) {
      Case c;
      c.channels = {9, 16};
      c.rows = byoc_round_up(rows, line_rows);
      c.columns = 40;
      c.line_rows = line_rows;
      c.stride = 2;
      Check(c);
      c.line_gap = 29;
      c.threads = 2;
      Check(c);
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t rows : {1, 5, 150}) {
      for (int64_t columns : {20, 200}) {
        Case c;
        c.channels = {64, 32, 300};
        c.rows = rows;
        c.columns = columns;
        std::vector<float> alone, together;
        CHECK(Error(c, isa, &alone) <= 2e-6);
        for (int threads : {2, 3, 7}) {
          c.threads = threads;
          together.clear();
          CHECK(Error(c, isa, &together) <= 2e-6);
          CHECK(together == alone);
        }
      }
    }
  }
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      Case c;
      c.channels = {5, 4};
      c.rows = 7;
      c.columns = 45;
      c.bias = bias;
      c.post_ops = chain;
      Check(c);
    }
  }
}

TEST(numbers_that_are_not_finite) {
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  for (byoc_isa isa : InstructionSets()) {
    for (const float x : {nan, infinite, -infinite}) {
      Case c;
      c.channels = {1};
      c.relu = c.bias = false;
      const byoc_convolution p = Described(c, isa, 1);
      Parts parts(c.channels, 1, false);
      parts.sources[0]->data()[0] = x;
      parts.gamma.data()[0] = 1;
      std::vector<float> packed(32, 0.f), scratch(byoc_batch_norm_product_scratch_bytes(&p) / 4);
      packed[0] = 2;
      float result = 0;
      std::vector<int64_t> params(sizeof(p) / sizeof(int64_t));
      std::memcpy(params.data(), &p, sizeof(p));
      const std::vector<int64_t> of_norm = parts.Params(isa, 1);
      params.insert(params.end(), of_norm.begin(), of_norm.end());
      std::vector<void*> data = parts.Data();
      data.insert(data.end(), {packed.data(), &result});
      char message[BYOC_ERROR_BYTES];
      CHECK(byoc_batch_norm_product(params.data(), data.data(), scratch.data(), 1, message) ==
            BYOC_OK);
      CHECK(std::isnan(x) ? std::isnan(result) : result == x);
    }
  }
}

}  // namespace
