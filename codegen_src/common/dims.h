// SPDX-License-Identifier: Apache-2.0
// Shapes, and the symbolic dims they may be made of.
#ifndef TVM_BYOC_DNNL_COMMON_DIMS_H_
#define TVM_BYOC_DNNL_COMMON_DIMS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_byoc_dnnl {

using Dims = std::vector<int64_t>;

/// A dim that is not known before the symbols are bound. Never part of a specialised shape.
constexpr int64_t kUnknownDim = -1;

/// No tensor is larger than this, so that offsets never overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 62;

/// A number, a symbol, or an expression of two dims.
struct Dim {
  enum class Op : uint8_t { kConst, kSymbol, kAdd, kSub, kMul, kFloorDiv, kMod, kMax, kMin };

  Op op = Op::kConst;
  int64_t value = 0;      // the number, or the index of the symbol
  std::vector<Dim> args;  // two for the expressions

  bool operator==(const Dim& other) const {
    return op == other.op && value == other.value && args == other.args;
  }
};

/// Whether `dim` depends on a symbol.
bool Mentions(const Dim& dim, int symbol);

/// Sums and products with their operands in one order, so that equal ones compare equal.
Dim Sorted(Dim dim);

/// The value of `dim`. Throws Error(kInput) on overflow, division by zero and negative results.
int64_t Evaluate(const Dim& dim, const std::vector<int64_t>& symbols);

Dims Evaluate(const std::vector<Dim>& shape, const std::vector<int64_t>& symbols);

/// The numbers of `shape`, with kUnknownDim for all that is not one.
Dims KnownDims(const std::vector<Dim>& shape);

/// Number of elements; kUnknownDim if a dim is. Throws Error(kGraph) beyond kMaxBytes.
int64_t ElementCount(const Dims& shape);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_DIMS_H_
