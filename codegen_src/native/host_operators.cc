// SPDX-License-Identifier: Apache-2.0
#include "native/host_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "common/memory_plan.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr size_t kMostOperands = 3;
constexpr int64_t kLanes = 512;  // numbers of a row that are computed together
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Integers of all dtypes are computed in 64 bits, and floating point in double: one rounding to
// float32 behind it gives what float32 arithmetic does, for +, -, *, / and roots.

template <typename Lane, typename Apply>
void Unary(const Lane* const* operands, Lane* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Lane>(Apply()(operands[0][i]));
}

template <typename Lane, typename Apply>
void Binary(const Lane* const* operands, Lane* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    result[i] = static_cast<Lane>(Apply()(operands[0][i], operands[1][i]));
}

template <typename Lane>
void Where(const Lane* const* operands, Lane* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    result[i] = operands[0][i] != 0 ? operands[1][i] : operands[2][i];
}

struct Same {
  template <typename Lane>
  Lane operator()(Lane a) const {
    return a;
  }
};

struct Root {
  double operator()(double a) const { return std::sqrt(a); }
};

/// The one of two numbers that is first in an order; a NaN before all.
template <typename Order>
struct First {
  template <typename Lane>
  Lane operator()(Lane a, Lane b) const {
    return a != a || Order()(a, b) ? a : b;
  }
};

template <typename Apply>
constexpr HostOperator OfTwo(const char* name) {
  return {name, 2, HostWork::kEach, Binary<int64_t, Apply>, Binary<double, Apply>, 0};
}

/// Integers without a sign wrap around instead of an overflow.
template <template <typename> class Apply>
constexpr HostOperator Arithmetic(const char* name) {
  return {name, 2, HostWork::kEach, Binary<int64_t, Apply<uint64_t>>, Binary<double, Apply<double>>,
          0};
}

template <typename Apply>
constexpr HostOperator Reduction(const char* name, double start) {
  return {name, 1, HostWork::kReduced, nullptr, Binary<double, Apply>, start};
}

constexpr HostOperator kOperators[] = {
    Arithmetic<std::plus>("add"),
    Arithmetic<std::minus>("subtract"),
    Arithmetic<std::multiplies>("multiply"),
    {"divide", 2, HostWork::kEach, nullptr, Binary<double, std::divides<>>, 0},
    OfTwo<First<std::greater<>>>("maximum"),
    OfTwo<First<std::less<>>>("minimum"),
    OfTwo<std::less<>>("less"),
    OfTwo<std::less_equal<>>("less_equal"),
    OfTwo<std::greater<>>("greater"),
    OfTwo<std::greater_equal<>>("greater_equal"),
    OfTwo<std::equal_to<>>("equal"),
    OfTwo<std::not_equal_to<>>("not_equal"),
    OfTwo<std::logical_and<>>("logical_and"),
    OfTwo<std::logical_or<>>("logical_or"),
    {"logical_not", 1, HostWork::kEach, Unary<int64_t, std::logical_not<>>, nullptr, 0},
    {"negative", 1, HostWork::kEach, Unary<int64_t, std::negate<uint64_t>>,
     Unary<double, std::negate<>>, 0},
    {"sqrt", 1, HostWork::kEach, nullptr, Unary<double, Root>, 0},
    {"where", 3, HostWork::kEach, Where<int64_t>, Where<double>, 0},
    {"astype", 1, HostWork::kEach, Unary<int64_t, Same>, Unary<double, Same>, 0},
    Reduction<std::plus<>>("sum", 0),
    Reduction<First<std::greater<>>>("max", -kInfinity),
    Reduction<First<std::less<>>>("min", kInfinity),
    {"gather_nd", 2, HostWork::kSlices, nullptr, nullptr, 0},
    {"arange", 2, HostWork::kSteps, nullptr, nullptr, 0},
};

bool IsReal(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

bool IsInteger(DType dtype) {
  return IsByte(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kBool;
}

/// Calls `work` with the data as an array of its type; booleans are bytes.
template <typename Work>
void WithNumbers(const HostTensor& tensor, const Work& work) {
  switch (tensor.dtype) {
    case DType::kInt64:
      return work(static_cast<int64_t*>(tensor.data));
    case DType::kInt32:
      return work(static_cast<int32_t*>(tensor.data));
    case DType::kInt8:
      return work(static_cast<int8_t*>(tensor.data));
    case DType::kFloat32:
      return work(static_cast<float*>(tensor.data));
    case DType::kFloat64:
      return work(static_cast<double*>(tensor.data));
    default:
      return work(static_cast<uint8_t*>(tensor.data));
  }
}

template <typename Lane>
void Load(const HostTensor& from, int64_t start, int64_t step, int64_t count, Lane* lanes) {
  WithNumbers(from, [&](const auto* numbers) {
    numbers += start;
    if (step == 0) {
      std::fill_n(lanes, count, static_cast<Lane>(numbers[0]));
    } else if (step == 1) {
      for (int64_t i = 0; i < count; ++i) lanes[i] = static_cast<Lane>(numbers[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) lanes[i] = static_cast<Lane>(numbers[i * step]);
    }
  });
}

/// A number without a fraction; those that have no place in 64 bits become the lowest one.
int64_t AsInteger(double number) {
  constexpr double kEnd = 0x1p63;
  return number >= -kEnd && number < kEnd ? static_cast<int64_t>(number)
                                          : std::numeric_limits<int64_t>::min();
}

int64_t AsInteger(int64_t number) { return number; }

template <typename Lane>
void Store(const Lane* lanes, int64_t count, const HostTensor& to, int64_t start) {
  WithNumbers(to, [&](auto* numbers) {
    using Number = std::remove_reference_t<decltype(*numbers)>;
    numbers += start;
    for (int64_t i = 0; i < count; ++i) {
      if (to.dtype == DType::kBool) {
        numbers[i] = static_cast<Number>(lanes[i] != 0);
      } else if (std::is_floating_point_v<Number>) {
        numbers[i] = static_cast<Number>(lanes[i]);
      } else {
        numbers[i] = static_cast<Number>(AsInteger(lanes[i]));
      }
    }
  });
}

/// In elements, for the axes of a result; 0 along an axis that an operand repeats.
Dims BroadcastStrides(const Dims& operand, const Dims& result) {
  Dims strides = DenseStrides(operand);
  for (size_t i = 0; i < operand.size(); ++i) {
    if (operand[i] == 1) strides[i] = 0;
  }
  strides.insert(strides.begin(), result.size() - operand.size(), 0);
  return strides;
}

/// Walks over a shape in pieces of rows: calls `visit(places, steps, count)` with the place in each
/// tensor of these strides, and its step.
template <typename Visit>
void WalkRows(Dims shape, std::vector<Dims> strides, const Visit& visit) {
  for (size_t axis = shape.size(); axis-- > 1;) {  // axes that are one for all tensors
    const bool is_one = std::all_of(strides.begin(), strides.end(), [&](const Dims& own) {
      return shape[axis - 1] == 1 || own[axis - 1] == own[axis] * shape[axis];
    });
    if (!is_one) continue;
    shape[axis - 1] *= shape[axis];
    shape.erase(shape.begin() + static_cast<int64_t>(axis));
    for (Dims& own : strides) {
      own[axis - 1] = own[axis];
      own.erase(own.begin() + static_cast<int64_t>(axis));
    }
  }
  const int64_t row = shape.empty() ? 1 : shape.back(), all = ElementCount(shape);
  if (!shape.empty()) shape.pop_back();
  Dims at(shape.size(), 0);
  std::vector<int64_t> places(strides.size(), 0), steps, pieces(strides.size());
  for (const Dims& own : strides) steps.push_back(own.empty() ? 0 : own.back());
  for (int64_t done = 0; done < all; done += row) {
    for (int64_t first = 0; first < row; first += kLanes) {
      for (size_t k = 0; k < places.size(); ++k) pieces[k] = places[k] + first * steps[k];
      visit(pieces, steps, std::min(kLanes, row - first));
    }
    for (size_t axis = shape.size(); axis-- > 0;) {
      for (size_t k = 0; k < places.size(); ++k) places[k] += strides[k][axis];
      if (++at[axis] < shape[axis]) break;
      for (size_t k = 0; k < places.size(); ++k) places[k] -= strides[k][axis] * at[axis];
      at[axis] = 0;
    }
  }
}

template <typename Lane>
void RunEach(HostLoop<Lane> loop, const std::vector<HostTensor>& operands,
             const HostTensor& result) {
  std::vector<Dims> strides;
  for (const HostTensor& operand : operands)
    strides.push_back(BroadcastStrides(operand.shape, result.shape));
  Lane lanes[kMostOperands][kLanes], made[kLanes];
  const Lane* rows[] = {lanes[0], lanes[1], lanes[2]};
  int64_t done = 0;
  WalkRows(result.shape, strides, [&](const auto& places, const auto& steps, int64_t count) {
    for (size_t k = 0; k < operands.size(); ++k)
      Load(operands[k], places[k], steps[k], count, lanes[k]);
    loop(rows, made, count);
    Store(made, count, result, done);
    done += count;
  });
}

void Reduce(const HostOperator& op, const HostTensor& operand, const HostTensor& result) {
  std::vector<double> sums(static_cast<size_t>(ElementCount(result.shape)), op.start);
  double lanes[kLanes];
  auto add = [&](double* to, const double* other, int64_t count) {
    const double* both[] = {to, other};
    op.reals(both, to, count);
  };
  WalkRows(operand.shape,
           {DenseStrides(operand.shape), BroadcastStrides(result.shape, operand.shape)},
           [&](const auto& places, const auto& steps, int64_t count) {
             Load(operand, places[0], steps[0], count, lanes);
             if (steps[1] == 1) return add(&sums[places[1]], lanes, count);
             for (int64_t left = count; left > 1; left -= left / 2)
               add(lanes, lanes + left - left / 2, left / 2);
             add(&sums[places[1]], lanes, 1);
           });
  Store(sums.data(), static_cast<int64_t>(sums.size()), result, 0);
}

void GatherSlices(const HostTensor& data, const HostTensor& indices, const HostTensor& result) {
  const int64_t depth = indices.shape.back();
  const int64_t rows = depth == 0 ? 0 : ElementCount(indices.shape) / depth;
  const int64_t bytes =
      ElementCount(Dims(data.shape.begin() + depth, data.shape.end())) * SizeOf(data.dtype);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t slice = 0;
    for (int64_t k = 0; k < depth; ++k) {
      int64_t index;
      Load(indices, row * depth + k, 0, 1, &index);
      if (index < 0 || index >= data.shape[k])
        throw std::out_of_range(Cat("gather_nd: index ", index, " is out of range, axis ", k,
                                    " has ", data.shape[k], " elements"));
      slice = slice * data.shape[k] + index;
    }
    std::memcpy(static_cast<char*>(result.data) + row * bytes,
                static_cast<const char*>(data.data) + slice * bytes, static_cast<size_t>(bytes));
  }
}

void Count(const HostTensor& start, const HostTensor& step, const HostTensor& result) {
  uint64_t at, by;  // they wrap around
  Load(start, 0, 0, 1, &at);
  Load(step, 0, 0, 1, &by);
  for (int64_t i = 0; i < ElementCount(result.shape); ++i, at += by) {
    const auto number = static_cast<int64_t>(at);
    Store(&number, 1, result, i);
  }
}

/// Whether the operator computes with floating point; the condition of `where` is none of it.
bool IsOfReals(const std::vector<DType>& operands) { return IsReal(operands.back()); }

bool Broadcasts(const Dims& operand, const Dims& result) {
  return operand.size() <= result.size() &&
         std::equal(operand.rbegin(), operand.rend(), result.rbegin(),
                    [](int64_t own, int64_t wanted) { return own == wanted || own == 1; });
}

}  // namespace

const HostOperator* FindHostOperator(std::string_view name) {
  const auto found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](const HostOperator& op) { return name == op.name; });
  return found == std::end(kOperators) ? nullptr : found;
}

bool Takes(const HostOperator& op, const std::vector<DType>& operands, DType result) {
  if (operands.size() != op.operands) return false;
  if (op.work == HostWork::kSlices) return operands[0] == result && IsInteger(operands[1]);
  const bool is_real = IsOfReals(operands), is_real_result = IsReal(result);
  if (!is_real_result && !IsInteger(result)) return false;
  const bool is_choice = op.operands == 3;
  for (size_t i = is_choice ? 1 : 0; i < operands.size(); ++i) {
    if (is_real ? operands[i] != operands.back() : !IsInteger(operands[i])) return false;
  }
  if (is_choice && !IsInteger(operands[0])) return false;
  if (op.work == HostWork::kSteps) return !is_real && !is_real_result;
  if (is_real ? op.reals == nullptr : op.integers == nullptr) return false;
  return op.name == std::string_view("astype") || is_real == is_real_result ||
         result == DType::kBool;
}

bool Fits(const HostOperator& op, const std::vector<Dims>& operands, const Dims& result) {
  switch (op.work) {
    case HostWork::kSlices: {
      const Dims &data = operands[0], &indices = operands[1];
      if (indices.empty() || indices.back() < 1 ||
          indices.back() > static_cast<int64_t>(data.size()))
        return false;
      Dims expected(indices.begin(), indices.end() - 1);
      expected.insert(expected.end(), data.begin() + indices.back(), data.end());
      return result == expected;
    }
    case HostWork::kSteps:
      return operands[0].empty() && operands[1].empty() && result.size() == 1;
    case HostWork::kReduced:
      return result.size() == operands[0].size() && Broadcasts(result, operands[0]);
    default:
      return std::all_of(operands.begin(), operands.end(),
                         [&](const Dims& operand) { return Broadcasts(operand, result); });
  }
}

void Run(const HostOperator& op, const std::vector<HostTensor>& operands, HostTensor result) {
  if (op.work == HostWork::kSlices) return GatherSlices(operands[0], operands[1], result);
  if (op.work == HostWork::kSteps) return Count(operands[0], operands[1], result);
  if (op.work == HostWork::kReduced) return Reduce(op, operands[0], result);
  if (IsReal(operands.back().dtype)) return RunEach(op.reals, operands, result);
  RunEach(op.integers, operands, result);
}

}  // namespace tvm_byoc_dnnl
