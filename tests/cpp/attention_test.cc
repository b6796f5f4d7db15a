// SPDX-License-Identifier: Apache-2.0
// The attention kernel against one in float64: every tail, several blocks of keys and of rows,
// grouped heads, masks and biases, each instruction set that this CPU has. An unreadable page lies
// behind every buffer.
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
#include "kernels/byoc_attention.h"
#include "kernels/byoc_copy.h"

namespace {

struct Case {
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 8, value_width = 8;
  std::vector<int64_t> starts;  // the positions of the first queries; none: all keys are seen
  int64_t window = 0;
  double softcap = 0;
  bool sinks = false;
  bool bias = false, bias_of_all_heads = false;
  int64_t length = -1;        // of the keys that are valid; -1: no such input
  bool rows_of_heads = true;  // the heads of a row lie side by side
  int threads = 1;
  double scale = 0.3;
  byoc_dtype dtype = BYOC_F32;  // of keys and values
  int64_t page_rows = 0;        // keys and values lie in pages; 0: they do not
};

int64_t PagesOf(const Case& c) { return (c.keys + c.page_rows - 1) / c.page_rows; }

/// Dense rows in pages, of which those that come last lie first; their strides are `strides` then.
std::vector<float> InPages(const Case& c, const Guarded& rows, int64_t width,
                           byoc_attention_strides* strides) {
  const byoc_attention_strides from = *strides;
  *strides = {c.key_heads * c.page_rows * width, c.page_rows * width, width};
  const int64_t count = PagesOf(c);
  std::vector<float> pages(static_cast<size_t>(c.batch * count * strides->batch));
  for (int64_t i = 0; i < c.batch * c.key_heads * c.keys; ++i) {
    const int64_t b = i / c.keys / c.key_heads, h = i / c.keys % c.key_heads, k = i % c.keys;
    const int64_t page = (c.batch - b) * count - 1 - k / c.page_rows;
    std::copy_n(
        rows.data() + b * from.batch + h * from.head + k * from.row, width,
        pages.data() + page * strides->batch + h * strides->head + k % c.page_rows * strides->row);
  }
  return pages;
}

/// Numbers as they are stored: those that are given become what is stored. The last one ends where
/// the buffer does.
void* Stored(Guarded* numbers, byoc_dtype dtype, Guarded* room) {
  const auto width = static_cast<size_t>(byoc_dtype_bytes(dtype));
  auto* to = reinterpret_cast<char*>(room->data() + room->size()) - numbers->size() * width;
  for (size_t i = 0; i < numbers->size(); ++i) {
    float& x = numbers->data()[i];
    const uint16_t brain = byoc_to_bfloat16(x), half = byoc_to_float16(x);
    const auto whole = static_cast<int8_t>(std::lrint(x * 20));
    if (dtype == BYOC_BF16) x = byoc_from_bfloat16(brain);
    if (dtype == BYOC_F16) x = byoc_from_float16(half);
    if (dtype == BYOC_S8) x = whole;
    const void* from = dtype == BYOC_F32    ? static_cast<const void*>(&x)
                       : dtype == BYOC_BF16 ? static_cast<const void*>(&brain)
                       : dtype == BYOC_F16  ? static_cast<const void*>(&half)
                                            : &whole;
    std::memcpy(to + i * width, from, width);
  }
  return to;
}

byoc_attention_strides Strides(const Case& c, int64_t rows, int64_t heads, int64_t width) {
  if (c.rows_of_heads) return {rows * heads * width, width, heads * width};
  return {rows * heads * width, rows * width, width};
}

struct Run {
  int status = BYOC_OK;
  double error = 0;  // the largest, in units of what the roundings of scores and values may move
  double sums_error = 0;
  std::vector<float> result;
};

Run RunCase(const Case& c, byoc_isa isa) {
  byoc_attention_params p{};
  p.isa = isa;
  p.key.dtype = p.value.dtype = c.dtype;
  p.batch = c.batch;
  p.heads = c.heads;
  p.key_heads = c.key_heads;
  p.queries = c.queries;
  p.keys = c.keys;
  p.key.width = c.width;
  p.value.width = c.value_width;
  p.rule.scale = c.scale;
  p.reach.has_starts = !c.starts.empty();
  p.reach.window = c.window;
  p.rule.softcap = c.softcap;
  p.rule.has_sinks = c.sinks;
  p.rule.has_bias = c.bias;
  p.reach.has_length = c.length >= 0;
  p.query = Strides(c, c.queries, c.heads, c.width);
  p.key.strides = Strides(c, c.keys, c.key_heads, c.width);
  p.value.strides = Strides(c, c.keys, c.key_heads, c.value_width);
  p.dst = Strides(c, c.queries, c.heads, c.value_width);
  p.bias = {c.heads * c.queries * c.keys, c.queries * c.keys, c.keys};
  if (c.bias_of_all_heads) p.bias = {0, 0, c.keys};
  p.threads = c.threads;

  std::mt19937 random(7);
  Guarded query(static_cast<size_t>(c.batch * p.query.batch));
  Guarded key(static_cast<size_t>(c.batch * p.key.strides.batch));
  Guarded value(static_cast<size_t>(c.batch * p.value.strides.batch));
  Guarded dst(static_cast<size_t>(c.batch * p.dst.batch));
  const int64_t biases = c.bias_of_all_heads ? c.queries * c.keys : c.batch * p.bias.batch;
  Guarded bias(static_cast<size_t>(biases));
  Guarded sinks(static_cast<size_t>(c.heads));
  Fill({&query, &key, &value, &bias, &sinks}, &random, 2);
  for (size_t i = 0; i < bias.size(); i += 5) {
    bias.data()[i] = i % 2 == 0 ? -INFINITY : std::numeric_limits<float>::lowest();
  }
  int64_t length = c.length;
  Guarded key_room(key.size()), value_room(value.size());
  std::vector<void*> data = {query.data(), Stored(&key, c.dtype, &key_room),
                             Stored(&value, c.dtype, &value_room)};
  if (c.bias) data.push_back(bias.data());
  if (c.length >= 0) data.push_back(&length);
  std::vector<int64_t> starts = c.starts;
  if (p.reach.has_starts) data.push_back(starts.data());
  if (c.sinks) data.push_back(sinks.data());
  data.push_back(dst.data());
  byoc_attention_params given = p;
  Guarded sums(static_cast<size_t>(c.batch * c.queries * c.heads));
  std::vector<float> key_pages, value_pages;
  std::vector<int32_t> numbers;
  std::vector<const int32_t*> tables;
  if (c.page_rows > 0) {
    given.reach.page_rows = c.page_rows;
    given.rule.has_sums = 1;
    key_pages = InPages(c, key, c.width, &given.key.strides);
    value_pages = InPages(c, value, c.value_width, &given.value.strides);
    data[1] = key_pages.data();
    data[2] = value_pages.data();
    for (int64_t i = c.batch * PagesOf(c); i-- > 0;) numbers.push_back(static_cast<int32_t>(i));
    for (int64_t b = 0; b < c.batch; ++b) tables.push_back(numbers.data() + b * PagesOf(c));
    data.insert(data.end() - 1 - (c.sinks ? 1 : 0), tables.data());
    data.push_back(sums.data());
  }
  Guarded scratch(byoc_attention_scratch_bytes(&given) / 4, 64);
  int64_t params[sizeof(p) / sizeof(int64_t)];
  std::memcpy(params, &given, sizeof(p));
  char message[BYOC_ERROR_BYTES] = "";
  Run run;
  run.status = byoc_attention(params, data.data(), scratch.data(), c.threads, message);
  run.result.assign(dst.data(), dst.data() + dst.size());
  if (run.status != BYOC_OK) return run;

  const int64_t keys = c.length >= 0 ? c.length : c.keys;
  double largest_value = 0, largest_score = 0;  // the latter as a sum of magnitudes
  for (size_t i = 0; i < value.size(); ++i) {
    largest_value = std::max(largest_value, std::abs(static_cast<double>(value.data()[i])));
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kh = h / (c.heads / c.key_heads);
      for (int64_t i = 0; i < c.queries; ++i) {
        std::vector<double> shares(static_cast<size_t>(keys), -INFINITY);
        double top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < keys; ++k) {
          if (p.reach.has_starts) {
            const int64_t position = c.starts[static_cast<size_t>(b)] + i;
            if (k > position) break;
            if (c.window > 0 && k <= position - c.window) continue;
          }
          double score = 0, magnitude = 0;
          for (int64_t d = 0; d < c.width; ++d) {
            const double term =
                static_cast<double>(
                    query.data()[b * p.query.batch + h * p.query.head + i * p.query.row + d]) *
                key.data()[b * p.key.strides.batch + kh * p.key.strides.head +
                           k * p.key.strides.row + d];
            score += term;
            magnitude += std::abs(term);
          }
          largest_score = std::max(largest_score, magnitude * c.scale);
          score *= c.scale;
          if (c.softcap != 0) score = c.softcap * std::tanh(score / c.softcap);
          if (c.bias) score += bias.data()[b * p.bias.batch + h * p.bias.head + i * p.bias.row + k];
          shares[static_cast<size_t>(k)] = score;
          top = std::max(top, score);
        }
        if (c.sinks) top = std::max(top, static_cast<double>(sinks.data()[h]));
        for (double& share : shares) sum += share = std::exp(share - top);
        if (c.sinks) sum += std::exp(sinks.data()[h] - top);
        if (c.page_rows > 0) {
          const double got = sums.data()[(b * c.queries + i) * c.heads + h];
          const double expected = std::log2(sum) + top / std::log(2.0);
          run.sums_error = Worse(run.sums_error, std::abs(expected - got));
        }
        for (int64_t e = 0; e < c.value_width; ++e) {
          double expected = 0;
          for (int64_t k = 0; k < keys; ++k) {
            expected += shares[static_cast<size_t>(k)] / sum *
                        value.data()[b * p.value.strides.batch + kh * p.value.strides.head +
                                     k * p.value.strides.row + e];
          }
          const double got = dst.data()[b * p.dst.batch + h * p.dst.head + i * p.dst.row + e];
          if (sum == 0 || keys == 0) expected = std::nan("");
          if (std::isnan(expected) && std::isnan(got)) continue;
          const double difference = std::abs(expected - got);
          run.error = Worse(run.error, difference);
        }
      }
    }
  }
  run.error /= std::max(largest_value * (1 + largest_score), 1e-30);
  return run;
}

void Check(const Case& c) {
  for (byoc_isa isa : InstructionSets()) {
    const Run run = RunCase(c, isa);
    if (run.status != BYOC_OK || !(run.error <= 1.2e-7) || !(run.sums_error <= 1e-5)) {
      check::Failed(__FILE__, __LINE__,
                    "instruction set " + std::to_string(isa) + ", queries " +
                        std::to_string(c.queries) + ", keys " + std::to_string(c.keys) +
                        ", width " + std::to_string(c.width) + " and " +
                        std::to_string(c.value_width) + ", start " +
                        std::to_string(c.starts.empty() ? -1 : c.starts[0]) + ", window " +
                        std::to_string(c.window) + ": error " + check::Show(run.error));
    }
  }
}

TEST(widths) {
  for (int64_t width : {1, 7, 8, 9, 16, 17, 33, 64}) {
    for (int64_t value_width : {1, 8, 15, 16, 17, 33, 64, 65, 130}) {
      for (int64_t queries : {1, 3, 9}) {
        Case c;
        c.width = width;
        c.value_width = value_width;
        c.queries = queries;
        c.keys = 11;
        Check(c);
      }
    }
  }
}

TEST(queries_and_keys) {
  for (int64_t queries : {1, 2, 8, 9, 23, 24, 25, 49}) {
    for (int64_t keys : {1, 2, 15, 16, 17, 31, 32, 33, 100, 512, 513, 1030}) {
      Case c;
      c.queries = queries;
      c.keys = keys;
      Check(c);
      for (int64_t start : {int64_t{0}, keys - queries, int64_t{-2}, keys - 1}) {
        c.starts = {start};  // rows that see nothing are NaN in both
        Check(c);
      }
    }
  }
}

TEST(narrow_keys_and_values) {
  for (byoc_dtype dtype : {BYOC_BF16, BYOC_F16, BYOC_S8}) {
    for (int64_t width : {1, 15, 16, 33, 64}) {
      for (int64_t queries : {1, 5, 30}) {
        for (int64_t keys : {1, 19, 700}) {
          Case c;
          c.dtype = dtype;
          c.width = width;
          c.value_width = 65 - width;
          c.heads = 4;
          c.key_heads = 2;
          c.queries = queries;
          c.keys = keys;
          c.starts = {keys - 1};
          c.threads = 2;
          Check(c);
        }
      }
    }
  }
}

TEST(pages) {
  for (int64_t page_rows : {1, 16, 40}) {
    for (int64_t queries : {1, 7, 30}) {
      for (bool sinks : {false, true}) {
        Case c;
        c.page_rows = page_rows;
        c.batch = 2;
        c.heads = 6;
        c.key_heads = 3;
        c.queries = queries;
        c.keys = 610;
        c.width = 24;
        c.value_width = 17;
        c.starts = {600 - queries, 0};
        c.sinks = sinks;
        c.threads = 2;
        Check(c);
      }
    }
  }
}

TEST(heads_groups_batches_and_biases) {
  for (int64_t key_heads : {1, 2, 6}) {
    for (int64_t queries : {1, 5, 30}) {
      for (bool rows_of_heads : {false, true}) {
        for (int threads : {1, 2, 3}) {
          Case c;
          c.batch = 2;
          c.heads = 6;
          c.key_heads = key_heads;
          c.queries = queries;
          c.keys = 37;
          c.rows_of_heads = rows_of_heads;
          c.threads = threads;
          c.bias = true;
          c.bias_of_all_heads = threads == 2;
          Check(c);
        }
      }
    }
  }
}

TEST(a_length_below_the_capacity) {
  for (int64_t queries : {1, 4, 20}) {
    for (int64_t length : {0, 1, 20, 600, 700}) {
      Case c;
      c.queries = queries;
      c.keys = 700;
      c.length = length;
      Check(c);
    }
  }
  for (int64_t length : {701}) {
    Case c;
    c.keys = 700;
    c.length = length;
    for (byoc_isa isa : InstructionSets()) CHECK_EQUAL(RunCase(c, isa).status, BYOC_BAD_INDEX);
  }
}

TEST(starts_windows_caps_and_sinks) {
  for (int64_t window : {0, 1, 5, 16, 600}) {
    for (double softcap : {0.0, 0.7}) {
      for (bool sinks : {false, true}) {
        for (int64_t queries : {1, 3, 40}) {
          Case c;
          c.batch = 3;
          c.heads = 6;
          c.key_heads = 2;
          c.queries = queries;
          c.keys = 1100;
          c.starts = {1100 - queries, 0, 517};
          c.window = window;
          c.softcap = softcap;
          c.sinks = sinks;
          c.threads = 2;
          Check(c);
        }
      }
    }
  }
}

TEST(a_row_that_sees_nothing_but_its_sink_is_zero) {
  for (byoc_isa isa : InstructionSets()) {
    Case c;
    c.keys = 4;
    c.starts = {-3};
    c.sinks = true;
    for (float x : RunCase(c, isa).result) CHECK(x == 0);
  }
}

TEST(threads_do_not_change_a_bit) {
  for (byoc_isa isa : InstructionSets()) {
    for (int64_t queries : {1, 3, 100}) {
      Case c;
      c.queries = queries;
      c.keys = 600;
      const Run alone = RunCase(c, isa);
      for (int threads : {2, 3, 5}) {
        c.threads = threads;
        CHECK(RunCase(c, isa).result == alone.result);
      }
    }
  }
}

}  // namespace
