// SPDX-License-Identifier: Apache-2.0
// ONNX's definition of recurrent networks in float64, and the data that a case of it reads.
#ifndef TVM_BYOC_DNNL_TESTS_RECURRENT_REFERENCE_H_
#define TVM_BYOC_DNNL_TESTS_RECURRENT_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_check.h"
#include "kernels/byoc_recurrent_plan.h"

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
  int64_t bits = 32;  // of a weight
  int threads = 1;
};

inline double Curve(const byoc_recurrent_curve& c, double clip, double x) {
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
    if (c.bits != 32) {
      narrow_w = Narrow(&w, c, c.input, 0);
      narrow_r = Narrow(&r, c, c.hidden, gates * c.hidden);
    }
    if (c.first_number != 0) source.data()[0] = c.first_number;
    for (size_t i = 0; i < source.size() && c.equal_sequences; ++i) {
      const auto width = static_cast<size_t>(c.input), all = static_cast<size_t>(c.batch) * width;
      source.data()[i] =
          static_cast<float>(std::sin(static_cast<double>(i / all * width + i % width)));
    }
  }
  static size_t Count(int64_t count) { return static_cast<size_t>(count); }

  /// Weights in fewer bits; what they stand for takes the place of the float32 ones.
  std::vector<char> Narrow(Guarded* weights, const Case& c, int64_t depth, int64_t first_scale) {
    const int64_t bytes = c.bits / 8, units = gates * c.hidden;
    std::vector<char> narrow(weights->size() * static_cast<size_t>(bytes));
    scales.resize(Count(directions * 2 * units));
    for (int64_t i = 0; i < static_cast<int64_t>(weights->size()); ++i) {
      float& number = weights->data()[i];
      char* to = narrow.data() + i * bytes;
      if (bytes == 2) {
        uint32_t all;
        std::memcpy(&all, &number, 4);
        all &= 0xffff0000U;
        std::memcpy(&number, &all, 4);
        all >>= 16;
        std::memcpy(to, &all, 2);
        continue;
      }
      const int64_t line = i / depth, d = line / units, unit = line % units;
      float& scale = scales[Count(2 * d * units + first_scale + unit)];
      scale = 0.01F / static_cast<float>(1 + unit % 7);
      *to = static_cast<char>(std::clamp(std::round(number / scale), -128.F, 127.F));
      number = scale * static_cast<float>(static_cast<signed char>(*to));
    }
    return narrow;
  }

  int64_t directions, gates;
  Guarded source, w, r, bias, peepholes, state, memory;
  std::vector<char> narrow_w, narrow_r;
  std::vector<float> scales;
};

inline byoc_recurrent_params ParamsOf(const Case& c, const Data& data, byoc_isa isa) {
  byoc_recurrent_params p{};
  p.shape = {isa, c.cell, data.directions, c.input, c.hidden, c.bias, c.peepholes, c.bits};
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
  p.waits = c.steps % 2;  // threads divide the units of a step, or do not
  return p;
}

/// The result by ONNX's definition, where the kernel writes it.
inline std::vector<double> Reference(const Case& c, const Data& data,
                                     const byoc_recurrent_params& p) {
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

#endif  // TVM_BYOC_DNNL_TESTS_RECURRENT_REFERENCE_H_
