// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments of a call; nothing about them is assumed.
#ifndef TVM_BYOC_DNNL_RUNTIME_ARGUMENTS_H_
#define TVM_BYOC_DNNL_RUNTIME_ARGUMENTS_H_

#include <tvm/ffi/cast.h>
// cast.h stands first: the header below needs it.
#include <tvm/ffi/container/tensor.h>

#include <string>

#include "common/graph.h"
#include "runtime/dense.h"

namespace tvm_byoc_dnnl {

/// The names by which messages call an argument.
struct ArgumentName {
  const Graph& graph;
  const char* role;  // "argument", "constant" ...
  size_t index;
  const Tensor& tensor;

  std::string operator()() const;
};

/// The tensor must have this dtype and rank, in host memory.
void CheckKind(const DLTensor& tensor, const ArgumentName& name);

/// The data of such a tensor that must be dense, too.
void* CheckTensor(const DLTensor& tensor, const ArgumentName& name);

/// Ranks agree: CheckTensor comes first.
void CheckShape(const DLTensor& tensor, const Dims& expected, const ArgumentName& name);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_RUNTIME_ARGUMENTS_H_
