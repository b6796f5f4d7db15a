// SPDX-License-Identifier: Apache-2.0
// Layer normalisation, softmax and means of rows of float32 against float64: rows of every length,
// of equal numbers, and with a mean that is large beside the deviations; each instruction set that
// this CPU has. An unreadable page lies behind every buffer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_normalize.h"

namespace {

constexpr double kEpsilon = 1e-5;

struct Rows {
  const int64_t rows, columns;
  Guarded source, gamma, beta, result;

  Rows(int64_t rows, int64_t columns, byoc_row_form form)
      : rows(rows),
        columns(columns),
        source(static_cast<size_t>(rows * columns)),
        gamma(static_cast<size_t>(columns)),
        beta(static_cast<size_t>(columns)),
        result(static_cast<size_t>(form == BYOC_MEAN ? rows : rows * columns)) {
    std::mt19937 random(5);
    Fill({&source, &gamma, &beta}, &random);
  }

  void Call(byoc_isa isa, byoc_row_form form, int threads) {
    byoc_normalize_params p{};
    p.isa = isa;
    p.form = form;
    p.rows = rows;
    p.columns = columns;
    p.src_dtype = p.dst_dtype = BYOC_F32;
    p.src_scale = p.dst_scale = p.dst_zero = -1;
    const bool is_layer = form == BYOC_LAYER, has_scale = is_layer || form == BYOC_RMS;
    p.gamma = has_scale ? 1 : -1;
    p.beta = is_layer ? 2 : -1;
    p.result = is_layer ? 3 : has_scale ? 2 : 1;
    p.epsilon = kEpsilon;
    p.factor = 1;
    p.threads = threads;
    std::vector<int64_t> params(sizeof(p) / sizeof(int64_t));
    std::memcpy(params.data(), &p, sizeof(p));
    std::vector<void*> data = {source.data()};
    if (has_scale) data.push_back(gamma.data());
    if (is_layer) data.push_back(beta.data());
    data.push_back(result.data());
    Guarded scratch(static_cast<size_t>(threads * byoc_normalize_numbers(&p)), 64);
    char message[BYOC_ERROR_BYTES];
    CHECK_EQUAL(byoc_normalize(params.data(), data.data(), scratch.data(), threads, message),
                BYOC_OK);
  }

  double Mean(int64_t row) const {
    double sum = 0;
    for (int64_t k = 0; k < columns; ++k) sum += source.data()[row * columns + k];
    return sum / static_cast<double>(columns);
  }

  /// The largest error of the normalised rows.
  double Error(byoc_row_form form = BYOC_LAYER) const {
    const bool is_layer = form == BYOC_LAYER;
    double error = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double mean = is_layer ? Mean(row) : 0;
      double squares = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double x = source.data()[row * columns + k] - mean;
        squares += x * x;
      }
      const double factor = 1 / std::sqrt(squares / static_cast<double>(columns) + kEpsilon);
      for (int64_t k = 0; k < columns; ++k) {
        const int64_t at = row * columns + k;
        const double shift = is_layer ? beta.data()[k] : 0;
        const double want = (source.data()[at] - mean) * factor * gamma.data()[k] + shift;
        error = Worse(error, std::abs(result.data()[at] - want));
      }
    }
    return error;
  }
};

TEST(rows_of_every_length) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns = 1; columns <= 67; ++columns) {
      Rows rows(3, columns, BYOC_LAYER);
      rows.Call(isa, BYOC_LAYER, 1);
      CHECK(rows.Error() < 2e-6);
    }
  }
}

TEST(rows_without_a_mean) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns : {1, 2, 7, 15, 16, 17, 33, 64, 67, 4100}) {
      Rows rows(3, columns, BYOC_RMS);
      rows.Call(isa, BYOC_RMS, 2);
      CHECK(rows.Error(BYOC_RMS) < 2e-6);
    }
  }
}

TEST(a_large_mean_costs_nothing) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns : {5, 300, 4096, 4100, 100003}) {
      for (float mean : {10.f, 1e3f, -1e5f}) {
        Rows rows(2, columns, BYOC_LAYER);
        for (size_t i = 0; i < rows.source.size(); ++i) rows.source.data()[i] += mean;
        rows.Call(isa, BYOC_LAYER, 2);
        CHECK(rows.Error() < 3e-6);
      }
    }
  }
}

TEST(equal_numbers_become_the_shift) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns : {1, 2, 3, 7, 16, 49, 768, 5000}) {
      for (float x : {50.3f, 10000.7f, -1e-3f, 3e38f}) {
        Rows rows(2, columns, BYOC_LAYER), means(2, columns, BYOC_MEAN);
        for (Rows* each : {&rows, &means}) {
          std::fill(each->source.data(), each->source.data() + each->source.size(), x);
        }
        rows.Call(isa, BYOC_LAYER, 1);
        means.Call(isa, BYOC_MEAN, 1);
        for (int64_t k = 0; k < columns; ++k)
          CHECK_EQUAL(rows.result.data()[k], rows.beta.data()[k]);
        CHECK_EQUAL(means.result.data()[1], x);
      }
    }
  }
}

TEST(means_are_rounded_once) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns : {1, 9, 33, 70000}) {
      for (int threads : {1, 3}) {
        Rows rows(5, columns, BYOC_MEAN);
        for (size_t i = 0; i < rows.source.size(); ++i) rows.source.data()[i] += 1000;
        rows.Call(isa, BYOC_MEAN, threads);
        for (int64_t row = 0; row < rows.rows; ++row) {
          CHECK_EQUAL(rows.result.data()[row], static_cast<float>(rows.Mean(row)));
        }
      }
    }
  }
}

TEST(a_number_that_is_not_finite_makes_its_row_NaN) {
  for (byoc_isa isa : InstructionSets()) {
    for (float special : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      Rows rows(2, 20, BYOC_LAYER);
      rows.source.data()[23] = special;
      rows.Call(isa, BYOC_LAYER, 1);
      CHECK(std::isfinite(rows.result.data()[19]));
      CHECK(std::isnan(rows.result.data()[20]));
      CHECK(std::isnan(rows.result.data()[39]));
    }
  }
}

TEST(shares_of_short_rows) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t columns = 1; columns <= byoc_lanes(isa); ++columns) {
      for (int threads : {1, 3}) {
        Rows rows(37, columns, BYOC_SOFTMAX);
        float* x = rows.source.data();
        x[columns] = std::nanf("");
        x[3 * columns - 1] = std::numeric_limits<float>::infinity();
        for (int64_t k = 0; k < columns; ++k) x[3 * columns + k] = -1000.f * static_cast<float>(k);
        x[5 * columns - 1] = -std::numeric_limits<float>::infinity();  // alone, all of its row
        rows.Call(isa, BYOC_SOFTMAX, threads);
        for (int64_t row = 0; row < rows.rows; ++row) {
          const float* of = x + row * columns;
          double total = 0;
          const double top = *std::max_element(of, of + columns);
          for (int64_t k = 0; k < columns; ++k) total += std::exp(of[k] - top);
          for (int64_t k = 0; k < columns; ++k) {
            const double got = rows.result.data()[row * columns + k];
            const double want = std::exp(of[k] - top) / total;
            CHECK(std::isnan(total) ? std::isnan(got) : std::abs(got - want) < 1e-6);
          }
        }
      }
    }
  }
}

}  // namespace
