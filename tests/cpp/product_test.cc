// SPDX-License-Identifier: Apache-2.0
// The packed product against one in float64: every tail of every dimension, blocks of depth and of
// rows, each instruction set that this CPU has. An unreadable page lies behind every buffer.
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
#include "kernels/byoc_product.h"

namespace {

struct Case {
  int64_t rows = 1, columns = 1, depth = 1;
  int64_t gap = 0;          // floats between the rows of source and result
  int64_t line_rows = 0;    // rows in each line of the source, 0 for all of them in one
  int64_t line_gap = 0;     // floats behind each of these lines
  bool transposed = false;  // weights that lie as columns x depth
  int threads = 1;
  bool bias = true;
  bool sum_in_place = false;  // the operand per element is the result's own memory
  std::vector<byoc_post_op> post_ops;
};

std::vector<int64_t> Params(const Case& c, byoc_isa isa) {
  std::vector<int64_t> params(
      (sizeof(byoc_convolution) + c.post_ops.size() * sizeof(byoc_post_op)) / sizeof(int64_t));
  auto& p = *reinterpret_cast<byoc_convolution*>(params.data());
  p = Product(isa, c.threads, c.rows, c.line_rows, c.depth, c.columns);
  p.src.pixel = c.depth + c.gap;
  p.src.row = p.out_width * p.src.pixel + c.line_gap;
  p.dst.pixel = c.columns + c.gap;
  if (c.transposed) p.weights = {0, c.depth, 1, 0};
  p.has_bias = c.bias;
  p.post_ops = static_cast<int64_t>(c.post_ops.size());
  return params;
}

/// Runs a case and returns the largest error, as a share of the largest result; what must not be
/// written counts as infinitely wrong.
double Error(const Case& c, byoc_isa isa, std::vector<float>* result = nullptr) {
  std::mt19937 random(7);
  std::vector<int64_t> params = Params(c, isa);
  auto& p = *reinterpret_cast<byoc_convolution*>(params.data());
  const auto rows = static_cast<size_t>(c.rows), columns = static_cast<size_t>(c.columns);
  const auto gap = static_cast<size_t>(c.gap);
  const auto source = [&p](int64_t row) { return byoc_product_place(&p, row); };
  Guarded src(static_cast<size_t>(source(c.rows - 1) + c.depth));
  Guarded dst(rows * static_cast<size_t>(p.dst.pixel) - gap);
  Guarded weights(columns * static_cast<size_t>(c.depth)), bias(columns);
  Guarded packed(byoc_product_packed_bytes(&p) / 4, 64);
  Guarded scratch(byoc_product_scratch_bytes(&p) / 4, 64);
  Fill({&src, &weights, &bias}, &random);
  Operands operands(columns, dst.size(), &random);
  if (c.sum_in_place) std::copy_n(operands.per_element().data(), dst.size(), dst.data());

  std::vector<byoc_post_op> post_ops = c.post_ops;
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  const byoc_strides strides = {0, 0, p.dst.pixel, 0, p.outputs};
  operands.Bind(strides, &post_ops, &data, c.sum_in_place ? dst.data() : nullptr);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), reinterpret_cast<byoc_post_op*>(&p + 1));
  void* const pack_data[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(byoc_product_pack(params.data(), pack_data, nullptr, c.threads, message) == BYOC_OK);
  CHECK(byoc_product(params.data(), data.data(), scratch.data(), c.threads, message) == BYOC_OK);

  double largest = 0, error = 0;
  for (int64_t m = 0; m < c.rows; ++m) {
    for (int64_t n = 0; n < c.columns; ++n) {
      double sum = c.bias ? bias.data()[n] : 0;
      for (int64_t k = 0; k < c.depth; ++k) {
        sum += static_cast<double>(src.data()[source(m) + k]) *
               weights.data()[c.transposed ? n * c.depth + k : k * c.columns + n];
      }
      sum = operands.Apply(post_ops, sum, n, m * p.dst.pixel + n);
      largest = std::max(largest, std::abs(sum));
      const double difference = std::abs(sum - dst.data()[m * p.dst.pixel + n]);
      error = Worse(error, difference);
      if (result != nullptr) result->push_back(dst.data()[m * p.dst.pixel + n]);
    }
    if (c.sum_in_place || m + 1 == c.rows) continue;
    for (int64_t n = c.columns; n < p.dst.pixel; ++n) {
      if (dst.data()[m * p.dst.pixel + n] != Guarded::kUntouched) return INFINITY;
    }
  }
  return error / std::max(largest, 1e-30);
}

byoc_post_op Add() {
  byoc_post_op add{};
  add.kind = BYOC_ADD;
  add.form = BYOC_PER_ELEMENT;
  return add;
}

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    const double error = Error(c, isa);
    if (!(error <= 2e-6)) {
      check::Failed(__FILE__, __LINE__,
                    "instruction set " + std::to_string(isa) + ", rows " + std::to_string(c.rows) +
                        ", columns " + std::to_string(c.columns) + ", depth " +
                        std::to_string(c.depth) + ", threads " + std::to_string(c.threads) +
                        ": error " + check::Show(error));
    }
  }
}

TEST(rows_and_columns) {
  for (int64_t rows = 1; rows <= 19; ++rows) {
    for (int64_t columns : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 95, 129}) {
      Case c;
      c.rows = rows;
      c.columns = columns;
      c.depth = 5;
      Check(c);
      c.bias = false;
      c.gap = 3;
      c.transposed = true;
      Check(c);
    }
  }
}

TEST(depths) {
  for (int64_t depth : {1, 2, 15, 16, 17, 33, 1023, 1024, 1025, 2049}) {
    for (int64_t rows : {1, 2, 3, 20}) {
      Case c;
      c.rows = rows;
      c.columns = 40;
      c.depth = depth;
      c.transposed = depth % 2 == 0;
      Check(c);
      c.post_ops.push_back(byoc_post_op{});  // relu
      Check(c);
    }
  }
}

TEST(blocks_of_rows) {
  for (int64_t rows : {143, 144, 145, 289, 300}) {
    for (bool bias : {false, true}) {
      Case c;
      c.rows = rows;
      c.columns = 70;
      c.depth = 1100;
      c.threads = 2;
      c.bias = bias;
      c.gap = 5;
      Check(c);
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t rows : {1, 2, 5, 150}) {
      for (int64_t columns : {20, 200}) {
        Case c;
        c.rows = rows;
        c.columns = columns;
        c.depth = 1300;
        std::vector<float> alone, together;
        CHECK(Error(c, isa, &alone) <= 2e-6);
        for (int threads : {2, 3, 4, 7}) {
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
      c.rows = 7;
      c.columns = 45;
      c.depth = 9;
      c.bias = bias;
      c.post_ops = chain;
      Check(c);
    }
  }
}

TEST(pixels_of_an_image) {
  for (int64_t rows : {1, 4, 5, 11, 160, 301}) {
    for (int64_t line_rows : {1, 5, 14}) {
      Case c;
      c.rows = byoc_round_up(rows, line_rows);
      c.columns = 40;
      c.depth = 19;
      c.line_rows = line_rows;
      Check(c);
      c.line_gap = 37;
      c.gap = 19;
      c.threads = 2;
      Check(c);
    }
  }
}

TEST(an_end_in_registers) {
  const byoc_post_op add = Add(), relu{};
  const std::vector<byoc_post_op> ends[] = {{add}, {relu}, {add, relu}, {relu, add}};
  for (const auto& end : ends) {
    for (int64_t columns : {31, 64, 90}) {  // whole panels and parts of one
      for (int64_t depth : {7, 1500}) {
        for (bool bias : {false, true}) {
          Case c;
          c.rows = 29;
          c.columns = columns;
          c.depth = depth;
          c.bias = bias;
          c.gap = 3;
          c.post_ops = end;
          Check(c);
        }
      }
    }
  }
}

TEST(a_sum_over_the_result_itself) {
  const byoc_post_op add = Add(), relu{};
  for (int64_t depth : {10, 2100}) {  // the partial sums of the blocks must not lie there
    Case c;
    c.rows = 150;
    c.columns = 64;
    c.depth = depth;
    c.threads = 2;
    c.post_ops = {add, relu};
    c.sum_in_place = true;
    Check(c);
  }
}

// Behind sums in memory, and (a whole panel) in registers.
TEST(numbers_that_are_special) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {std::nanf(""), kInfinity, -kInfinity, 0.f,    -0.f,  1e-40f,
                           1e30f,         -1e30f,    3e38f,      -3e38f, 100.f, -100.f};
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t kind = BYOC_RELU; kind < BYOC_ADD; ++kind) {
      for (int64_t columns : {int64_t{1}, byoc_panel(isa)}) {
        byoc_post_op op{};
        op.kind = kind;
        op.operand = -1;
        op.alpha = kind == BYOC_CLIP ? -2.f : kind == BYOC_SWISH ? 1.f : 0.25f;
        op.beta = 0.5f;
        Case c;
        c.rows = std::size(special);
        c.columns = columns;
        c.bias = false;
        c.post_ops = {op};
        std::vector<int64_t> params = Params(c, isa);
        auto& p = *reinterpret_cast<byoc_convolution*>(params.data());
        std::memcpy(&p + 1, &op, sizeof(op));
        std::vector<float> packed(64, 1.f), scratch(byoc_product_scratch_bytes(&p) / 4);
        std::vector<float> src(std::begin(special), std::end(special)), dst(src.size() * columns);
        void* const data[] = {src.data(), packed.data(), dst.data()};
        char message[BYOC_ERROR_BYTES];
        byoc_product(params.data(), data, scratch.data(), 1, message);
        for (size_t i = 0; i < dst.size(); ++i) {
          const float x = src[i / columns], got = dst[i];
          const auto want = static_cast<float>(Apply(op, x, 0));
          const check::Scope scope("post-operation " + std::to_string(kind) + " of " +
                                   check::Show(x) + ": " + check::Show(got));
          if (!std::isfinite(want)) {
            CHECK(std::isnan(want) ? std::isnan(got) : got == want);
          } else {
            CHECK(std::abs(got - want) <= 1e-6 * std::max(1.f, std::abs(want)));
          }
        }
      }
    }
  }
}

}  // namespace
