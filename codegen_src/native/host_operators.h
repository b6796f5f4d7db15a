// SPDX-License-Identifier: Apache-2.0
// Arithmetic between regions: a closed set of operators on few numbers, of which a model has few,
// computed one after the other.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

enum class HostWork : uint8_t {
  kEach,     // of elements of operands that broadcast
  kReduced,  // of the elements along the axes of which the result has one
  kSlices,   // slices of the first operand whose coordinates are the rows of the second
  kSteps,    // from the first operand on, in steps of the second
};

/// Computes `count` results; the result may be an operand.
template <typename Lane>
using HostLoop = void (*)(const Lane* const* operands, Lane* result, int64_t count);

struct HostOperator {
  const char* name;
  size_t operands;
  HostWork work;
  HostLoop<int64_t> integers;  // null where it takes none, as `reals`
  HostLoop<double> reals;
  double start;  // of a reduction
};

struct HostTensor {
  void* data;
  DType dtype;
  const Dims& shape;
};

/// Null if there is none of that name.
const HostOperator* FindHostOperator(std::string_view name);

/// Whether an operator takes such operands and makes such a result.
bool Takes(const HostOperator& op, const std::vector<DType>& operands, DType result);

/// Whether operands of these shapes make a result of this one.
bool Fits(const HostOperator& op, const std::vector<Dims>& operands, const Dims& result);

/// Throws std::out_of_range for an index that is none.
void Run(const HostOperator& op, const std::vector<HostTensor>& operands, HostTensor result);

}  // namespace tvm_byoc_dnnl
