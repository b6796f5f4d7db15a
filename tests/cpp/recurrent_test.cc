// SPDX-License-Identifier: Apache-2.0
// The kernel of recurrent networks against ONNX's definition in float64: every cell, option and
// activation, sizes around a panel, each instruction set that this CPU has, and the same bits with
// any number of threads. An unreadable page lies behind every buffer.
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
#include "kernels/byoc_recurrent.h"
#include "kernels/byoc_recurrent_pack.h"

namespace {

struct Case {
  byoc_cell cell = BYOC_LSTM;
  int64_t steps = 5, batch = 1, input = 3, hidden = 5;
  std::vector<bool> reverse = {false};
  bool bias = true, peepholes = false, state = false, memory = false, coupled = false;
  std::vector<int32_t> lengths;
  bool wants_state = true, wants_cell = true, wants_all = true;
  bool batch_major = false;  // of source and result
  byoc_recurrent_curve curves[BYOC_CURVES] = {
      {BYOC_SIGMOID, 0, 0}, {BYOC_TANH, 0, 0}, {BYOC_TANH, 0, 0}};
  double clip = INFINITY;
  float first_number = 0;  // of the source; 0: a random one
  bool equal_sequences = false;
  int threads = 1;
};

double Curve(const byoc_recurrent_curve& c, double clip, double x) {
  x = std::clamp(x, -clip, clip);
  switch (static_cast<byoc_activation>(c.kind)) {
    case BYOC_SIGMOID:
      return 1 / (1 + std::exp(-x));
    case BYOC_TANH:
      return std::tanh(x);
    case BYOC_ACT_RELU:
      return std::max(x, 0.0);
    case BYOC_AFFINE:
      return c.alpha * x + c.beta;
    case BYOC_LEAKY_RELU:
      return x < 0 ? c.alpha * x : x;
    case BYOC_THRESHOLDED_RELU:
      return x > c.alpha ? x : 0;
    case BYOC_SCALED_TANH:
      return c.alpha * std::tanh(c.beta * x);
    case BYOC_HARD_SIGMOID:
      return std::clamp(c.alpha * x + c.beta, 0.0, 1.0);
    case BYOC_ELU:
      return x < 0 ? c.alpha * std::expm1(x) : x;
    case BYOC_SOFTSIGN:
      return x / (1 + std::abs(x));
    case BYOC_SOFTPLUS:
      return std::log1p(std::exp(x));
  }
  return x;
}

struct Data {
  explicit Data(const Case& c)
      : directions(static_cast<int64_t>(c.reverse.size())),
        gates(byoc_gates(c.cell)),
        source(Count(c.steps * c.batch * c.input)),
        w(Count(directions * gates * c.hidden * c.input)),
        r(Count(directions * gates * c.hidden * c.hidden)),
        bias(Count(directions * 2 * gates * c.hidden)),
        peepholes(Count(directions * 3 * c.hidden)),
        state(Count(directions * c.batch * c.hidden)),
        memory(Count(directions * c.batch * c.hidden)) {
    std::mt19937 random(11);
    Fill({&bias, &peepholes}, &random);
    Fill({&w}, &random, 1.5F / std::sqrt(static_cast<float>(c.input)));
    Fill({&r}, &random, 1.5F / std::sqrt(static_cast<float>(c.hidden)));
    Fill({&source, &state, &memory}, &random);
    if (c.first_number != 0) source.data()[0] = c.first_number;
    for (size_t i = 0; i < source.size() && c.equal_sequences; ++i) {
      const auto width = static_cast<size_t>(c.input), all = static_cast<size_t>(c.batch) * width;
      source.data()[i] =
          static_cast<float>(std::sin(static_cast<double>(i / all * width + i % width)));
    }
  }
  static size_t Count(int64_t count) { return static_cast<size_t>(count); }

  int64_t directions, gates;
  Guarded source, w, r, bias, peepholes, state, memory;
};

byoc_recurrent_params ParamsOf(const Case& c, const Data& data, byoc_isa isa) {
  byoc_recurrent_params p{};
  p.shape = {isa, c.cell, data.directions, c.input, c.hidden, c.bias, c.peepholes};
  p.steps = c.steps;
  p.batch = c.batch;
  p.has_state = c.state;
  p.has_cell = c.memory;
  p.has_lengths = !c.lengths.empty();
  p.wants_state = c.wants_state;
  p.wants_cell = c.wants_cell && c.cell == BYOC_LSTM;
  p.wants_all = c.wants_all;
  for (size_t d = 0; d < c.reverse.size(); ++d) {
    p.reverse[d] = c.reverse[d];
    std::copy(c.curves, c.curves + BYOC_CURVES, p.curves[d]);
  }
  p.clip = c.clip;
  p.coupled = c.coupled;
  p.src_step = c.batch_major ? c.input : c.batch * c.input;
  p.src_row = c.batch_major ? c.steps * c.input : c.input;
  p.dst_row = data.directions * c.batch * c.hidden;
  p.dst_direction = c.batch_major ? c.hidden : c.batch * c.hidden;
  p.dst_sequence = c.batch_major ? data.directions * c.hidden : c.hidden;
  p.threads = c.threads;
  return p;
}

/// The result by ONNX's definition, where the kernel writes it.
std::vector<double> Reference(const Case& c, const Data& data, const byoc_recurrent_params& p) {
  const int64_t hidden = c.hidden, first = p.wants_state + p.wants_cell;
  std::vector<double> result(static_cast<size_t>((first + p.wants_all * c.steps) * p.dst_row));
  for (int64_t d = 0; d < data.directions; ++d) {
    for (int64_t row = 0; row < c.batch; ++row) {
      const int64_t sequence = d * c.batch + row,
                    place = d * p.dst_direction + row * p.dst_sequence;
      const auto at = [&](const Guarded& from, bool given, int64_t index) {
        return given ? static_cast<double>(from.data()[index]) : 0.0;
      };
      std::vector<double> h, m;
      for (int64_t u = 0; u < hidden; ++u) {
        h.push_back(at(data.state, c.state, sequence * hidden + u));
        m.push_back(at(data.memory, c.memory, sequence * hidden + u));
      }
      const int64_t length = c.lengths.empty() ? c.steps : c.lengths[static_cast<size_t>(row)];
      if (length == 0) h = m = std::vector<double>(static_cast<size_t>(hidden));
      for (int64_t step = 0; step < length; ++step) {
        const int64_t time = p.reverse[d] ? length - 1 - step : step;
        const float* x = data.source.data() + time * p.src_step + row * p.src_row;
        const auto of_source = [&](int64_t gate, int64_t u) {
          const int64_t line = (d * data.gates + gate) * hidden + u;
          double sum = at(data.bias, c.bias, (2 * d * data.gates + gate) * hidden + u);
          for (int64_t k = 0; k < c.input; ++k) {
            sum += static_cast<double>(x[k]) * data.w.data()[line * c.input + k];
          }
          return sum;
        };
        const auto of_state = [&](int64_t gate, int64_t u, const std::vector<double>& from) {
          const int64_t line = (d * data.gates + gate) * hidden + u;
          double sum = at(data.bias, c.bias, ((2 * d + 1) * data.gates + gate) * hidden + u);
          for (int64_t k = 0; k < hidden; ++k) {
            sum += from[static_cast<size_t>(k)] * data.r.data()[line * hidden + k];
          }
          return sum;
        };
        const auto act = [&](int which, double v) {
          return Curve(c.curves[which], which == 2 ? INFINITY : c.clip, v);
        };
        const auto peephole = [&](int64_t k, int64_t u) {
          return at(data.peepholes, c.peepholes, (d * 3 + k) * hidden + u);
        };
        std::vector<double> next = h, reset = h;
        if (c.cell == BYOC_GRU) {
          for (int64_t u = 0; u < hidden; ++u) {
            reset[static_cast<size_t>(u)] *= act(0, of_source(1, u) + of_state(1, u, h));
          }
        }
        for (int64_t u = 0; u < hidden; ++u) {
          const auto i = static_cast<size_t>(u);
          const auto both = [&](int64_t gate) { return of_source(gate, u) + of_state(gate, u, h); };
          if (c.cell == BYOC_RNN) {
            next[i] = act(0, both(0));
          } else if (c.cell == BYOC_LSTM) {
            const double in = act(0, both(0) + peephole(0, u) * m[i]);
            const double forget = c.coupled ? 1 - in : act(0, both(2) + peephole(2, u) * m[i]);
            m[i] = forget * m[i] + in * act(1, both(3));
            next[i] = act(0, both(1) + peephole(1, u) * m[i]) * act(2, m[i]);
          } else {
            const double update = act(0, both(0));
            const double candidate =
                c.cell == BYOC_GRU ? act(1, of_source(2, u) + of_state(2, u, reset))
                                   : act(1, of_source(2, u) + act(0, both(1)) * of_state(2, u, h));
            next[i] = (1 - update) * candidate + update * h[i];
          }
        }
        h = next;
        for (int64_t u = 0; u < hidden && c.wants_all; ++u) {
          result[static_cast<size_t>((first + time) * p.dst_row + place + u)] =
              h[static_cast<size_t>(u)];
        }
      }
      for (int64_t u = 0; u < hidden; ++u) {
        const auto i = static_cast<size_t>(u);
        if (p.wants_state) result[static_cast<size_t>(place + u)] = h[i];
        if (p.wants_cell) result[static_cast<size_t>(p.wants_state * p.dst_row + place + u)] = m[i];
      }
    }
  }
  return result;
}

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
  if (c.bias) weights.push_back(data.bias.data());
  if (c.peepholes) weights.push_back(data.peepholes.data());
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
         std::to_string(c.peepholes) + ", threads " + std::to_string(c.threads);
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
    for (int64_t hidden : {37, 200}) {
      for (byoc_isa isa : InstructionSets()) {
        Case c;
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
