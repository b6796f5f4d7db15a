// SPDX-License-Identifier: Apache-2.0
// Index arithmetic between regions: a closed set of operators on integers and booleans, of which a
// model has few, computed one after the other.
#ifndef TVM_BYOC_DNNL_NATIVE_INDEX_OPERATORS_H_
#define TVM_BYOC_DNNL_NATIVE_INDEX_OPERATORS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

struct IndexOperator {
  const char* name;
  size_t operands;
  /// The result for one number of each operand; null for an operator that moves slices.
  int64_t (*apply)(const int64_t* numbers);
};

struct IndexTensor {
  void* data;
  DType dtype;
  const Dims& shape;
};

/// Null if there is none of that name.
const IndexOperator* FindIndexOperator(std::string_view name);

/// Whether an operator takes such operands and makes such a result.
bool Takes(const IndexOperator& op, const std::vector<DType>& operands, DType result);

/// Whether operands of these shapes make a result of this one.
bool Fits(const IndexOperator& op, const std::vector<Dims>& operands, const Dims& result);

/// Throws std::out_of_range for an index that is none.
void Run(const IndexOperator& op, const std::vector<IndexTensor>& operands, IndexTensor result);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_NATIVE_INDEX_OPERATORS_H_
