// SPDX-License-Identifier: Apache-2.0
// The kernel of recurrent networks against ONNX's definition in float64: every cell, option and
// activation, sizes around a panel, each instruction set that this CPU has, and the same bits with
// any number of threads. An unreadable page lies behind every buffer.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_recurrent.h"
#include "kernels/byoc_recurrent_plan.h"
#include "recurrent_reference.h"

namespace {

struct Run {
  int status = BYOC_OK;
  double error = 0;
  std::vector<float> result;
};

Run RunCase(const Case& c, byoc_isa isa) {
  Data data(c);
  const byoc_recurrent_params p = ParamsOf(c, data, isa);
  Guarded packed(byoc_recurrent_packed_bytes(&p.shape) / 4);
  int64_t params[sizeof(p) / sizeof(int64_t)];
  std::memcpy(params, &p, sizeof(p));
  char message[BYOC_ERROR_BYTES] = "";
  std::vector<void*> weights = {data.w.data(), data.r.data()};
  if (c.bits != 32) weights = {data.narrow_w.data(), data.narrow_r.data()};
  if (c.bias) weights.push_back(data.bias.data());
  if (c.peepholes) weights.push_back(data.peepholes.data());
  if (c.bits == 8) weights.push_back(data.scales.data());
  weights.push_back(packed.data());
  byoc_recurrent_pack(params, weights.data(), nullptr, c.threads, message);

  std::vector<int32_t> lengths = c.lengths;
  std::vector<void*> given = {data.source.data(), packed.data()};
  if (c.state) given.push_back(data.state.data());
  if (c.memory) given.push_back(data.memory.data());
  if (!lengths.empty()) given.push_back(lengths.data());
  Guarded scratch(byoc_recurrent_scratch_bytes(&p) / 4, 64);
  Guarded result(
      static_cast<size_t>((p.wants_state + p.wants_cell + p.wants_all * c.steps) * p.dst_row));
  given.push_back(result.data());
  Run run;
  run.status = byoc_recurrent(params, given.data(), scratch.data(), c.threads, message);
  run.result.assign(result.data(), result.data() + result.size());
  if (run.status != BYOC_OK) return run;
  const std::vector<double> expected = Reference(c, data, p);
  Comparison comparison(result);
  for (size_t i = 0; i < expected.size(); ++i) {
    comparison.Expect(static_cast<int64_t>(i), expected[i]);
  }
  run.error = comparison.Error();
  return run;
}

std::string Show(const Case& c) {
  return "cell " + std::to_string(c.cell) + ", directions " + std::to_string(c.reverse.size()) +
         ", steps " + std::to_string(c.steps) + ", batch " + std::to_string(c.batch) + ", hidden " +
         std::to_string(c.hidden) + ", f " + std::to_string(c.curves[0].kind) + ", peepholes " +
         std::to_string(c.peepholes) + ", bits " + std::to_string(c.bits) + ", threads " +
         std::to_string(c.threads);
}

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    const Run run = RunCase(c, isa);
    if (run.status != BYOC_OK || !(run.error <= 1e-5)) {
      check::Failed(__FILE__, __LINE__,
                    "instruction set " + std::to_string(isa) + ", " + Show(c) + ": error " +
                        check::Show(run.error));
    }
  }
}

constexpr byoc_cell kCells[] = {BYOC_RNN, BYOC_LSTM, BYOC_GRU, BYOC_LBR_GRU};

/// Calls `visit` with a case of every cell in every set of directions.
template <typename Visit>
void ForEachCell(const Visit& visit) {
  for (byoc_cell cell : kCells) {
    for (const std::vector<bool>& reverse :
         {std::vector<bool>{false}, std::vector<bool>{true}, std::vector<bool>{false, true}}) {
      Case c;
      c.cell = cell;
      c.reverse = reverse;
      if (cell == BYOC_RNN) c.curves[0] = {BYOC_TANH, 0, 0};
      visit(c);
    }
  }
}

TEST(sizes) {
  ForEachCell([](Case c) {
    for (int64_t hidden : {1, 5, 16, 37, 64}) {
      for (int64_t batch : {1, 3, 50}) {
        for (int64_t steps : {0, 1, 7, 37}) {
          c.hidden = hidden;
          c.batch = batch;
          c.steps = steps;
          c.input = hidden == 16 ? 33 : 3;
          Check(c);
        }
      }
    }
  });
}

TEST(weights_of_fewer_bits) {
  ForEachCell([](Case c) {
    for (int64_t bits : {16, 8}) {
      for (int64_t hidden : {1, 5, 16, 37, 64}) {
        for (int64_t batch : {1, 2, 3, 7, 13}) {
          c.bits = bits;
          c.hidden = hidden;
          c.batch = batch;
          c.input = hidden == 16 ? 33 : hidden == 5 ? 2 : 3;
          Check(c);
        }
      }
    }
  });
}

TEST(several_chunks) {
  ForEachCell([](Case c) {
    for (int64_t batch : {1, 3, 200}) {
      c.batch = batch;
      c.steps = batch == 200 ? 3 : 331;
      Check(c);
    }
  });
}

TEST(lengths) {
  ForEachCell([](Case c) {
    c.batch = 4;
    c.steps = 9;
    c.state = c.memory = true;
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{9, 3, 1, 0}, std::vector<int32_t>{0, 0, 0, 0},
          std::vector<int32_t>{2, 2, 2, 2}}) {
      c.lengths = lengths;
      Check(c);
    }
  });
}

TEST(a_length_that_is_none) {
  for (int32_t length : {-1, 6, 1 << 30}) {
    Case c;
    c.lengths = {length};
    for (byoc_isa isa : InstructionSets()) CHECK_EQUAL(RunCase(c, isa).status, BYOC_BAD_INDEX);
  }
}

TEST(options) {
  ForEachCell([](Case c) {
    c.batch = 3;
    c.hidden = 37;
    for (int bits = 0; bits < 64; ++bits) {
      c.bias = (bits & 1) != 0;
      c.state = (bits & 2) != 0;
      c.batch_major = (bits & 4) != 0;
      c.clip = (bits & 8) != 0 ? 0.4 : INFINITY;
      const bool is_lstm = c.cell == BYOC_LSTM;
      if (!is_lstm && bits >= 16) break;
      c.peepholes = (bits & 16) != 0;
      c.coupled = (bits & 32) != 0;
      c.memory = is_lstm && c.state;
      Check(c);
    }
  });
}

TEST(results) {
  ForEachCell([](Case c) {
    for (int bits = 1; bits < 8; ++bits) {
      c.wants_state = (bits & 1) != 0;
      c.wants_cell = (bits & 2) != 0;
      c.wants_all = (bits & 4) != 0;
      if (c.cell == BYOC_LSTM || bits != 2) Check(c);
    }
  });
}

TEST(activations) {
  const byoc_recurrent_curve curves[] = {
      {BYOC_SIGMOID, 0, 0},         {BYOC_TANH, 0, 0},
      {BYOC_ACT_RELU, 0, 0},        {BYOC_AFFINE, 0.7, 0.1},
      {BYOC_LEAKY_RELU, 0.1, 0},    {BYOC_THRESHOLDED_RELU, 0.3, 0},
      {BYOC_SCALED_TANH, 0.9, 1.2}, {BYOC_HARD_SIGMOID, 0.2, 0.5},
      {BYOC_ELU, 0.8, 0},           {BYOC_SOFTSIGN, 0, 0},
      {BYOC_SOFTPLUS, 0, 0}};
  for (byoc_cell cell : kCells) {
    for (const byoc_recurrent_curve& curve : curves) {
      for (int which = 0; which < 3; ++which) {
        Case c;
        c.cell = cell;
        c.hidden = 21;
        c.curves[which] = curve;
        Check(c);
      }
    }
  }
}

TEST(a_number_that_is_none_stays_in_its_sequence) {
  ForEachCell([](Case c) {
    c.batch = 3;
    c.steps = 7;
    for (float value : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
      c.first_number = value;
      for (byoc_isa isa : InstructionSets()) {
        const Run run = RunCase(c, isa);
        for (size_t i = 0; i < run.result.size(); ++i) {
          const bool is_first =
              i / static_cast<size_t>(c.hidden) % static_cast<size_t>(c.batch) == 0;
          CHECK(is_first || !std::isnan(run.result[i]));
        }
        // the step that reads it, of the last rows that are results
        const size_t width = static_cast<size_t>(c.hidden) * 3 * c.reverse.size();
        const size_t step = run.result.size() - 7 * width;
        if (std::isnan(value)) CHECK(std::isnan(run.result[step]));
      }
    }
  });
}

TEST(the_same_bits_with_any_number_of_threads) {
  for (byoc_cell cell : kCells) {
    for (const auto& [hidden, bits] :
         {std::pair<int64_t, int64_t>{37, 32}, {200, 32}, {37, 16}, {200, 16}, {37, 8}, {200, 8}}) {
      for (byoc_isa isa : InstructionSets()) {
        Case c;
        c.bits = bits;
        c.cell = cell;
        c.hidden = hidden;
        c.batch = 5;
        c.steps = 61;
        c.reverse = {false, true};
        const Run alone = RunCase(c, isa);
        for (int threads : {2, 3, 7}) {
          c.threads = threads;
          CHECK(RunCase(c, isa).result == alone.result);
        }
        CHECK(alone.error <= 1e-5);
      }
    }
  }
}

TEST(the_same_bits_in_any_chunks) {  // those of three equal sequences are shorter
  for (byoc_cell cell : kCells) {
    for (byoc_isa isa : InstructionSets()) {
      Case c;
      c.cell = cell;
      c.steps = 331;
      c.hidden = 37;
      c.equal_sequences = true;
      const Run one = RunCase(c, isa);
      c.batch = 3;
      const Run three = RunCase(c, isa);
      CHECK(one.error <= 1e-5);
      const auto width = static_cast<size_t>(c.hidden);
      for (size_t i = 0; i < three.result.size(); ++i) {
        CHECK(three.result[i] == one.result[i / (3 * width) * width + i % width]);
      }
    }
  }
}

}  // namespace
