// SPDX-License-Identifier: Apache-2.0
// Tensors as DLPack describes them, and new ones in dense memory; and checks of the arguments of a
// call: nothing about them is assumed.
#pragma once

#include <new>
#include <string>

#include "byoc_plan.h"
#include "common/graph.h"
#include "runtime/ffi.h"

namespace tvm_byoc_dnnl {

/// Memory as tvm-ffi asks for it.
struct DenseMemory {
  void AllocData(DLTensor* tensor) {
    tensor->data = byoc_allocate(ffi::GetDataSize(*tensor));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { byoc_free(tensor->data); }
};

/// Where the elements of a tensor begin.
inline char* DataOf(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

inline Dims ShapeOf(const DLTensor& tensor) {
  return Dims(tensor.shape, tensor.shape + tensor.ndim);
}

/// A tensor with nothing in it.
inline ffi::Tensor DenseTensor(const Dims& shape, DLDataType dtype) {
  const ffi::ShapeView view(shape.data(), shape.size());
  return ffi::Tensor::FromNDAlloc(DenseMemory{}, view, dtype, DLDevice{kDLCPU, 0});
}

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
