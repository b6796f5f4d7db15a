// SPDX-License-Identifier: Apache-2.0
#include "common/dims.h"

#include <algorithm>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

// Subexpressions may be negative; a dim may not.
int64_t EvaluateAny(const Dim& dim, const std::vector<int64_t>& symbols) {
  if (dim.op == Dim::Op::kConst) return dim.value;
  if (dim.op == Dim::Op::kSymbol) return symbols.at(dim.value);
  int64_t a = EvaluateAny(dim.args[0], symbols);
  int64_t b = EvaluateAny(dim.args[1], symbols);
  int64_t result = 0;
  bool overflow = false;
  switch (dim.op) {
    case Dim::Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Dim::Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Dim::Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Dim::Op::kFloorDiv:
    case Dim::Op::kMod:
      if (b == 0) Fail(ErrorKind::kInput, "a dim's expression divides ", a, " by zero");
      if (b == -1) {  // INT64_MIN / -1
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        if (dim.op == Dim::Op::kMod) return 0;
      } else {
        result = FloorDiv(a, b);
        if (dim.op == Dim::Op::kMod) result = a - result * b;
      }
      break;
    case Dim::Op::kMax:
      return std::max(a, b);
    case Dim::Op::kMin:
      return std::min(a, b);
    case Dim::Op::kConst:
    case Dim::Op::kSymbol:
      break;  // done above
  }
  if (overflow) Fail(ErrorKind::kInput, "a dim's expression overflows with ", a, " and ", b);
  return result;
}

bool Less(const Dim& a, const Dim& b) {
  if (a.op != b.op) return a.op > b.op;  // numbers stand last
  if (a.value != b.value) return a.value < b.value;
  return std::lexicographical_compare(a.args.begin(), a.args.end(), b.args.begin(), b.args.end(),
                                      Less);
}

void ListOperands(const Dim& dim, Dim::Op op, std::vector<Dim>* operands) {
  if (dim.op != op) return operands->push_back(dim);
  for (const Dim& arg : dim.args) ListOperands(arg, op, operands);
}

}  // namespace

bool Mentions(const Dim& dim, int symbol) {
  if (dim.op == Dim::Op::kSymbol) return dim.value == symbol;
  return std::any_of(dim.args.begin(), dim.args.end(),
                     [&](const Dim& arg) { return Mentions(arg, symbol); });
}

Dim Sorted(Dim dim) {
  if (dim.op != Dim::Op::kAdd && dim.op != Dim::Op::kMul) return dim;
  std::vector<Dim> operands;
  ListOperands(dim, dim.op, &operands);
  std::sort(operands.begin(), operands.end(), Less);
  Dim result = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) result = {dim.op, 0, {result, operands[i]}};
  return result;
}

int64_t Evaluate(const Dim& dim, const std::vector<int64_t>& symbols) {
  int64_t value = EvaluateAny(dim, symbols);
  if (value < 0) Fail(ErrorKind::kInput, "a dim's expression gives ", value, ", expected >= 0");
  return value;
}

Dims Evaluate(const std::vector<Dim>& shape, const std::vector<int64_t>& symbols) {
  Dims result;
  result.reserve(shape.size());
  for (const Dim& dim : shape) result.push_back(Evaluate(dim, symbols));
  return result;
}

Dims KnownDims(const std::vector<Dim>& shape) {
  Dims result;
  result.reserve(shape.size());
  for (const Dim& dim : shape) {
    result.push_back(dim.op == Dim::Op::kConst ? dim.value : kUnknownDim);
  }
  return result;
}

int64_t ElementCount(const Dims& shape) {
  // The product of the dims without the zeros must be in range too: strides are made of it.
  int64_t count = 1;
  bool zero = false;
  bool unknown = false;
  for (int64_t dim : shape) {
    unknown |= dim < 0;
    zero |= dim == 0;
    if (dim <= 0) continue;
    if (count > kMaxBytes / dim) {
      Fail(ErrorKind::kGraph, "a tensor of shape ", Join(shape), " is larger than 2^62 bytes");
    }
    count *= dim;
  }
  return zero ? 0 : unknown ? kUnknownDim : count;
}

}  // namespace tvm_byoc_dnnl
