// SPDX-License-Identifier: Apache-2.0
// For the tests of convolutions: one description for all kernels, memory with an unreadable page
// behind every buffer, and the result in float64.
#ifndef TVM_BYOC_DNNL_TESTS_CONVOLUTION_CHECK_H_
#define TVM_BYOC_DNNL_TESTS_CONVOLUTION_CHECK_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_check.h"
#include "kernels/byoc_kernel.h"

enum class Layout { kChannelsLast, kPlanes, kBlocks };

struct Convolution {
  int64_t images = 1, groups = 1;
  int64_t channels = 1, outputs = 1;  // of a group
  int64_t height = 1, width = 1;
  int64_t kernel_height = 1, kernel_width = 1, stride_y = 1, stride_x = 1;
  int64_t dilation_y = 1, dilation_x = 1;
  int64_t top = 0, bottom = 0, left = 0, right = 0;
  Layout src = Layout::kChannelsLast, dst = Layout::kChannelsLast;
  int64_t lanes = 8;             // of a block of channels
  int64_t src_gap = 0, gap = 0;  // floats between pixels (channels last only)
  int64_t shuffle = 1;           // of the source's channels, as oneDNN's
  bool across = false;           // weights of neighbouring outputs lie side by side
  int threads = 1;
  bool bias = true;
  std::vector<byoc_post_op> post_ops;
  std::function<void(float* src, float* weights)> change = nullptr;  // of the random numbers

  int64_t OutHeight() const {
    return (height + top + bottom - (kernel_height - 1) * dilation_y - 1) / stride_y + 1;
  }
  int64_t OutWidth() const {
    return (width + left + right - (kernel_width - 1) * dilation_x - 1) / stride_x + 1;
  }
  int64_t Taps() const { return channels * kernel_height * kernel_width; }
  byoc_strides Source() const { return Strides(src, height, width, groups * channels, src_gap); }
  byoc_strides Result() const {
    return Strides(dst, OutHeight(), OutWidth(), groups * outputs, gap);
  }
  /// Groups, outputs, channels, taps; or taps, channels, groups, outputs.
  byoc_weight_strides Weights() const {
    const int64_t area = kernel_height * kernel_width, all = groups * outputs;
    if (across) return {outputs, 1, all, all * channels};
    return {outputs * Taps(), Taps(), area, 1};
  }
  /// Where a weight lies, of all outputs.
  int64_t Weight(int64_t output, int64_t channel, int64_t i, int64_t j) const {
    const byoc_weight_strides s = Weights();
    return output / outputs * s.group + output % outputs * s.output + channel * s.channel +
           (i * kernel_width + j) * s.tap;
  }
  /// The channel of the source that a channel of all groups is.
  int64_t Channel(int64_t channel) const {
    const int64_t columns = groups * channels / shuffle;
    return channel % columns * shuffle + channel / columns;
  }

 private:
  byoc_strides Strides(Layout layout, int64_t rows, int64_t columns, int64_t all,
                       int64_t between) const {
    const int64_t area = rows * columns, pixel = all + between;
    switch (layout) {
      case Layout::kPlanes:
        return {area * all, columns, 1, area, 1};
      case Layout::kBlocks:
        return {area * all, columns * lanes, lanes, area * lanes, lanes};
      default:
        return {area * pixel, columns * pixel, pixel, 0, all};
    }
  }
};

/// The parameters of a kernel, which begin with those of the convolution, and room for
/// post-operations.
template <typename P>
class Params {
 public:
  Params(const Convolution& c, byoc_isa isa)
      : numbers_((sizeof(P) + c.post_ops.size() * sizeof(byoc_post_op)) / sizeof(int64_t)) {
    *reinterpret_cast<byoc_convolution*>(data()) = {isa,
                                                    c.threads,
                                                    c.images,
                                                    c.groups,
                                                    c.channels,
                                                    c.height,
                                                    c.width,
                                                    c.outputs,
                                                    c.OutHeight(),
                                                    c.OutWidth(),
                                                    c.kernel_height,
                                                    c.kernel_width,
                                                    c.stride_y,
                                                    c.stride_x,
                                                    c.dilation_y,
                                                    c.dilation_x,
                                                    c.top,
                                                    c.left,
                                                    c.Source(),
                                                    c.Result(),
                                                    c.Weights(),
                                                    c.bias,
                                                    static_cast<int64_t>(c.post_ops.size())};
  }
  P& operator*() { return *reinterpret_cast<P*>(numbers_.data()); }
  P* operator->() { return &**this; }
  int64_t* data() { return numbers_.data(); }
  byoc_post_op* post_ops() { return reinterpret_cast<byoc_post_op*>(&**this + 1); }

 private:
  std::vector<int64_t> numbers_;
};

/// The functions of a kernel for some parameters, and the memory that they need.
struct Kernel {
  byoc_kernel pack, run;
  size_t packed_bytes, scratch_bytes;
};

/// The largest error, as a share of the largest result (`of_products`: of the sum of the absolute
/// values of all products of a result); what must not be written counts as infinitely wrong, and so
/// does a number that is finite in one of the two only, or of another sign if infinite.
struct Outcome {
  double error = 0;
  std::vector<float> results;
};

template <typename P>
Outcome Convolve(const Convolution& c, Params<P>* params, const Kernel& kernel,
                 bool of_products = false) {
  std::mt19937 random(7);
  const byoc_strides of_src = c.Source(), of_dst = c.Result();
  const int64_t all = c.groups * c.outputs;
  Guarded src(static_cast<size_t>(c.images * of_src.image - c.src_gap));
  Guarded dst(static_cast<size_t>(c.images * of_dst.image - c.gap));
  Guarded weights(static_cast<size_t>(all * c.Taps())), bias(static_cast<size_t>(all));
  Guarded packed(kernel.packed_bytes / 4, 64), scratch(kernel.scratch_bytes / 4, 64);
  std::fill(scratch.data(), scratch.data() + scratch.size(), NAN);
  Fill({&src, &weights, &bias}, &random);
  if (c.change) c.change(src.data(), weights.data());
  Operands operands(bias.size(), dst.size(), &random);
  std::vector<void*> data = {src.data(), packed.data()};
  if (c.bias) data.push_back(bias.data());
  std::vector<byoc_post_op> post_ops = c.post_ops;
  operands.Bind(of_dst, &post_ops, &data);
  data.push_back(dst.data());
  std::copy(post_ops.begin(), post_ops.end(), params->post_ops());
  void* const packing[] = {weights.data(), packed.data()};
  char message[BYOC_ERROR_BYTES];
  CHECK(kernel.pack(params->data(), packing, nullptr, c.threads, message) == BYOC_OK);
  CHECK(kernel.run(params->data(), data.data(), scratch.data(), c.threads, message) == BYOC_OK);

  const Window window = {c.height,   c.width,      c.kernel_height, c.kernel_width, c.stride_y,
                         c.stride_x, c.dilation_y, c.dilation_x,    c.top,          c.left};
  std::vector<int64_t> places;  // of the channels of all groups, in a pixel
  for (int64_t channel = 0; channel < c.groups * c.channels; ++channel) {
    places.push_back(byoc_channel_offset(&of_src, c.Channel(channel)));
  }
  Outcome outcome;
  Comparison results(dst);
  const auto expect = [&](int64_t n, int64_t y, int64_t x, int64_t o, int64_t at) {
    double sum = c.bias ? bias.data()[o] : 0, absolute = std::abs(sum);
    ForEachTap(window, y, x, [&](int64_t i, int64_t j, int64_t sy, int64_t sx) {
      const float* pixel = src.data() + n * of_src.image + sy * of_src.row + sx * of_src.pixel;
      const int64_t* place = &places[static_cast<size_t>(o / c.outputs * c.channels)];
      for (int64_t k = 0; k < c.channels; ++k) {
        const double product =
            static_cast<double>(pixel[place[k]]) * weights.data()[c.Weight(o, k, i, j)];
        sum += product;
        absolute += std::abs(product);
      }
    });
    sum = operands.Apply(post_ops, sum, o, at);
    const float result = dst.data()[at];
    outcome.results.push_back(result);
    if (!of_products) return results.Expect(at, sum);
    results.Expect(at);
    if (std::isnan(sum) && std::isnan(result)) return;
    if (!std::isfinite(static_cast<float>(sum)) && static_cast<float>(sum) == result) return;
    outcome.error = Worse(outcome.error, std::abs(sum - result) / std::max(absolute, 1e-30));
  };
  ForEachResult(of_dst, c.images, c.OutHeight(), c.OutWidth(), all, expect);
  if (!of_products) outcome.error = results.Error();
  if (!results.OthersUntouched()) outcome.error = INFINITY;
  return outcome;
}

/// Fails unless the error is within the tolerance. `how`: the kernel's variant.
inline void CheckError(const char* file, int line, const Convolution& c, const std::string& how,
                       double error, double tolerance) {
  if (error <= tolerance) return;
  std::string text = how;
  const auto add = [&text](const char* what, std::initializer_list<int64_t> numbers) {
    text += std::string(", ") + what;
    for (int64_t number : numbers) text += " " + std::to_string(number);
  };
  add("groups", {c.groups});
  add("channels", {c.channels});
  add("outputs", {c.outputs});
  add("image", {c.height, c.width});
  add("kernel", {c.kernel_height, c.kernel_width});
  add("strides", {c.stride_y, c.stride_x});
  add("dilations", {c.dilation_y, c.dilation_x});
  add("pads", {c.top, c.bottom, c.left, c.right});
  check::Failed(file, line, text + ": error " + check::Show(error));
}

/// The same bits, whatever the threads. `run`: computes a case, whose `threads` it is given.
template <typename Run>
void CheckThreads(Convolution c, double tolerance, const Run& run) {
  const Outcome alone = run(c);
  CHECK(alone.error <= tolerance);
  for (int threads : {2, 3, 4, 7}) {
    c.threads = threads;
    const Outcome together = run(c);
    CHECK(together.error <= tolerance);
    CHECK(together.results == alone.results);
  }
}

/// A source of NaN gives NaN, behind each post-operation that limits its numbers.
template <typename Run>
void CheckThatNanStays(Convolution c, std::initializer_list<byoc_post_op_kind> kinds,
                       const Run& run) {
  const auto count = static_cast<size_t>(c.images * c.Source().image - c.src_gap);
  c.change = [count](float* src, float*) { std::fill(src, src + count, NAN); };
  for (byoc_post_op_kind kind : kinds) {
    byoc_post_op op{};
    op.kind = kind;
    op.alpha = 0.25f;
    op.beta = 0.5f;
    c.post_ops = {op};
    const std::vector<float> results = run(c).results;
    CHECK(std::all_of(results.begin(), results.end(), [](float y) { return std::isnan(y); }));
  }
}

#endif  // TVM_BYOC_DNNL_TESTS_CONVOLUTION_CHECK_H_
