// SPDX-License-Identifier: Apache-2.0
// For the tests of kernels: memory with an unreadable page behind it, random numbers in it, the
// instruction sets of this CPU, and post-operations with their operands in float64.
#ifndef TVM_BYOC_DNNL_TESTS_KERNEL_CHECK_H_
#define TVM_BYOC_DNNL_TESTS_KERNEL_CHECK_H_

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/byoc_isa.h"
#include "kernels/byoc_post_ops.h"

/// Floats that end where an unreadable page begins.
class Guarded {
 public:
  explicit Guarded(size_t count, size_t alignment = sizeof(float)) : count_(count) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = (count * sizeof(float) + alignment - 1) / alignment * alignment;
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - page, page, PROT_NONE);
    data_ = reinterpret_cast<float*>(base_ + mapped_ - page - bytes);
    std::fill(data_, data_ + count, kUntouched);
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t size() const { return count_; }

  static constexpr float kUntouched = -12345.f;

 private:
  size_t count_, mapped_;
  char* base_;
  float* data_;
};

/// Fills buffers with numbers between -bound and bound.
inline void Fill(std::initializer_list<Guarded*> buffers, std::mt19937* random, float bound = 1) {
  std::uniform_real_distribution<float> number(-bound, bound);
  for (Guarded* buffer : buffers) {
    for (size_t i = 0; i < buffer->size(); ++i) buffer->data()[i] = number(*random);
  }
}

/// Where a number of an image lies.
inline int64_t Offset(const byoc_strides& s, int64_t image, int64_t y, int64_t x, int64_t channel) {
  return image * s.image + y * s.row + x * s.pixel + byoc_channel_offset(&s, channel);
}

/// A product of rows in lines of so many (0: one line) with weights whose columns lie side by side;
/// rows of the source and result lie densely.
inline byoc_convolution Product(byoc_isa isa, int threads, int64_t rows, int64_t line_rows,
                                int64_t depth, int64_t columns) {
  byoc_convolution p{};
  p.isa = isa;
  p.threads = threads;
  p.images = p.groups = p.kernel_height = p.kernel_width = 1;
  p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
  p.width = p.out_width = line_rows > 0 ? line_rows : rows;
  p.height = p.out_height = rows / byoc_max(p.width, 1);
  p.channels = depth;
  p.outputs = columns;
  p.src = {0, p.width * depth, depth, 0, depth};
  p.dst = {0, p.width * columns, columns, 0, columns};
  p.weights = {0, 1, columns, 0};
  return p;
}

/// The taps of a convolution, and the image that they read.
struct Window {
  int64_t height, width;
  int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x;
  int64_t top, left;
};

/// Calls `visit` with the row and column of each tap of the result (y, x) that lies inside of the
/// image, and of the pixel that it reads.
template <typename Visit>
void ForEachTap(const Window& w, int64_t y, int64_t x, const Visit& visit) {
  for (int64_t i = 0; i < w.kernel_y; ++i) {
    for (int64_t j = 0; j < w.kernel_x; ++j) {
      const int64_t sy = y * w.stride_y + i * w.dilation_y - w.top;
      const int64_t sx = x * w.stride_x + j * w.dilation_x - w.left;
      if (sy < 0 || sx < 0 || sy >= w.height || sx >= w.width) continue;
      visit(i, j, sy, sx);
    }
  }
}

/// The larger of two errors. One that is not a number is the largest.
inline double Worse(double error, double other) {
  return std::isnan(error) || error >= other ? error : other;
}

/// Calls `visit` with image, row, column and channel of each number of a result, and where it lies.
template <typename Visit>
void ForEachResult(const byoc_strides& s, int64_t images, int64_t height, int64_t width,
                   int64_t channels, const Visit& visit) {
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        for (int64_t o = 0; o < channels; ++o) visit(n, y, x, o, Offset(s, n, y, x, o));
      }
    }
  }
}

/// What a kernel wrote, compared with what it should have written.
class Comparison {
 public:
  explicit Comparison(const Guarded& got) : got_(got), expected_(got.size(), false) {}

  /// A result lies there, of which the caller measures the error.
  void Expect(int64_t at) { expected_[static_cast<size_t>(at)] = true; }

  void Expect(int64_t at, double want) {
    Expect(at);
    largest_ = std::max(largest_, std::abs(want));
    error_ = Worse(error_, std::abs(want - got_.data()[at]));
  }

  /// Whether memory that is no result was left alone.
  bool OthersUntouched() const {
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!expected_[i] && got_.data()[i] != Guarded::kUntouched) return false;
    }
    return true;
  }

  /// The largest error, as a share of the largest result; infinite where other memory was written.
  double Error() const { return OthersUntouched() ? error_ / std::max(largest_, 1e-30) : INFINITY; }

 private:
  const Guarded& got_;
  std::vector<bool> expected_;
  double largest_ = 0, error_ = 0;
};

inline double Apply(const byoc_post_op& op, double x, double operand) {
  const auto hardsigmoid = [&] { return std::clamp(op.alpha * x + op.beta, 0.0, 1.0); };
  switch (static_cast<byoc_post_op_kind>(op.kind)) {
    case BYOC_RELU:
      return x < 0 ? op.alpha * x : x;
    case BYOC_CLIP:
      return std::clamp<double>(x, op.alpha, op.beta);
    case BYOC_LINEAR:
      return op.alpha * x + op.beta;
    case BYOC_ABS:
      return std::abs(x);
    case BYOC_SQUARE:
      return x * x;
    case BYOC_HARDSIGMOID:
      return hardsigmoid();
    case BYOC_HARDSWISH:
      return x * hardsigmoid();
    case BYOC_LOGISTIC:
      return 1 / (1 + std::exp(-x));
    case BYOC_SWISH:
      return x / (1 + std::exp(-op.alpha * x));
    case BYOC_GELU_ERF:
      return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case BYOC_GELU_TANH:
      return x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))) / 2;
    case BYOC_ROUND:
      return std::nearbyint(x);
    case BYOC_LOG:
      return std::log(x);
    case BYOC_SOFT_RELU:
      return (std::max(op.alpha * x, 0.0) + std::log1p(std::exp(-std::abs(op.alpha * x)))) /
             op.alpha;
    case BYOC_ADD:
      return x + operand;
    case BYOC_SUB:
      return x - operand;
    case BYOC_MUL:
      return x * operand;
    case BYOC_DIV:
      return x / operand;
    case BYOC_MAX:
      return std::max(x, operand);
    case BYOC_MIN:
      return std::min(x, operand);
  }
  return x;
}

/// The operands of post-operations in each form.
class Operands {
 public:
  Operands(size_t channels, size_t elements, std::mt19937* random)
      : single_(1), per_channel_(channels), per_element_(elements) {
    Fill({&single_, &per_channel_, &per_element_}, random);
    for (Guarded* buffer : {&single_, &per_channel_, &per_element_}) {  // not small: they divide
      for (size_t i = 0; i < buffer->size(); ++i) {
        buffer->data()[i] += std::copysign(0.5f, buffer->data()[i]);
      }
    }
  }

  const Guarded& per_element() const { return per_element_; }

  /// Appends the operand of each post-operation to a kernel's data. `in_place`, if any, is the
  /// memory that a kernel reads instead of the operand per element.
  void Bind(const byoc_strides& strides, std::vector<byoc_post_op>* post_ops,
            std::vector<void*>* data, float* in_place = nullptr) {
    for (byoc_post_op& op : *post_ops) {
      op.operand = -1;
      if (op.kind < BYOC_ADD) continue;
      op.operand = static_cast<int64_t>(data->size());
      op.strides = strides;
      data->push_back(op.form == BYOC_PER_TENSOR    ? single_.data()
                      : op.form == BYOC_PER_CHANNEL ? per_channel_.data()
                      : in_place != nullptr         ? in_place
                                                    : per_element_.data());
    }
  }

  /// The result of post-operations on a number of this channel, at this place of the result.
  double Apply(const std::vector<byoc_post_op>& post_ops, double x, int64_t channel, int64_t at) {
    for (const byoc_post_op& op : post_ops) {
      const double operand = op.operand < 0                ? 0
                             : op.form == BYOC_PER_TENSOR  ? single_.data()[0]
                             : op.form == BYOC_PER_CHANNEL ? per_channel_.data()[channel]
                                                           : per_element_.data()[at];
      x = ::Apply(op, x, operand);
    }
    return x;
  }

 private:
  Guarded single_, per_channel_, per_element_;
};

/// Those of this CPU that kernels are compiled for; says which are left out.
inline const std::vector<byoc_isa>& InstructionSets() {
  static const std::vector<byoc_isa> sets = [] {
    std::vector<byoc_isa> found;
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2) found.push_back(BYOC_AVX2);
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (has_avx512) found.push_back(BYOC_AVX512);
    if (!has_avx2) std::puts("  not tested: this CPU has no AVX2");
    if (!has_avx512) std::puts("  not tested: this CPU has no AVX-512");
    return found;
  }();
  return sets;
}

/// Whether AMX may multiply bfloat16 in this process.
inline bool HasTiles() {
  static const bool has = [] {
    constexpr int kRequestState = 0x1023, kTiles = 18;
    const bool present = __builtin_cpu_supports("amx-bf16") != 0 &&
                         syscall(SYS_arch_prctl, kRequestState, kTiles) == 0;
    if (!present) std::puts("  not tested: this CPU has no AMX for bfloat16");
    return present;
  }();
  return has;
}

/// Each post-operation alone, each operand in each form, and a chain.
inline std::vector<std::vector<byoc_post_op>> PostOpChains() {
  auto op = [](byoc_post_op_kind kind, float alpha = 0, float beta = 0,
               byoc_operand form = BYOC_PER_TENSOR) {
    byoc_post_op result{};
    result.kind = kind;
    result.alpha = alpha;
    result.beta = beta;
    result.form = form;
    return result;
  };
  std::vector<std::vector<byoc_post_op>> chains = {
      {op(BYOC_RELU)},
      {op(BYOC_RELU, 0.1f)},
      {op(BYOC_CLIP, -0.5f, 0.7f)},
      {op(BYOC_LINEAR, 2.f, -1.f)},
      {op(BYOC_ABS)},
      {op(BYOC_SQUARE)},
      {op(BYOC_HARDSIGMOID, 1 / 6.f, 0.5f)},
      {op(BYOC_HARDSWISH, 1 / 6.f, 0.5f)},
      {op(BYOC_LOGISTIC)},
      {op(BYOC_SWISH, 1.f)},
      {op(BYOC_GELU_ERF)},
      {op(BYOC_GELU_TANH)},
      {op(BYOC_LINEAR, 10.f), op(BYOC_ROUND)},
      {op(BYOC_ADD, 0, 0, BYOC_PER_ELEMENT), op(BYOC_RELU)},
      {op(BYOC_ADD, 0, 0, BYOC_PER_ELEMENT), op(BYOC_CLIP, -0.5f, 0.7f)},
      {op(BYOC_RELU), op(BYOC_LINEAR, 2.f, -1.f)},
      {op(BYOC_CLIP, -0.5f, 0.7f), op(BYOC_LINEAR, 3.f), op(BYOC_LINEAR, 0.5f, 0.2f)},
      {op(BYOC_HARDSWISH, 1 / 6.f, 0.5f), op(BYOC_LINEAR, 2.f), op(BYOC_LINEAR, 1.f, -0.3f)},
      {op(BYOC_ADD, 0, 0, BYOC_PER_ELEMENT), op(BYOC_HARDSWISH, 1 / 6.f, 0.5f)},
      {op(BYOC_ADD, 0, 0, BYOC_PER_ELEMENT), op(BYOC_RELU), op(BYOC_MUL, 0, 0, BYOC_PER_CHANNEL)},
  };
  for (byoc_post_op_kind kind : {BYOC_ADD, BYOC_SUB, BYOC_MUL, BYOC_DIV, BYOC_MAX, BYOC_MIN}) {
    for (byoc_operand form : {BYOC_PER_TENSOR, BYOC_PER_CHANNEL, BYOC_PER_ELEMENT}) {
      chains.push_back({op(kind, 0, 0, form)});
    }
  }
  return chains;
}

#endif  // TVM_BYOC_DNNL_TESTS_KERNEL_CHECK_H_
