// SPDX-License-Identifier: Apache-2.0
#include "runtime/arguments.h"

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

bool HasDType(const DLDataType& got, DType expected) {
  if (got.lanes != 1) return false;
  const int bits = static_cast<int>(SizeOf(expected)) * 8;
  switch (expected) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kFloat64:
      return got.code == kDLFloat && got.bits == bits;
    case DType::kBFloat16:
      return got.code == kDLBfloat && got.bits == bits;
    case DType::kInt32:
    case DType::kInt8:
    case DType::kInt64:
      return got.code == kDLInt && got.bits == bits;
    case DType::kUInt8:
      return got.code == kDLUInt && got.bits == bits;
    case DType::kBool:  // TVM's older spelling is uint1
      return got.code == kDLBool || (got.code == kDLUInt && got.bits == 1);
  }
  return false;
}

bool IsContiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t stride = 1;
  bool contiguous = true;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 0) return true;  // no elements
    contiguous &= tensor.shape[axis] == 1 || tensor.strides[axis] == stride;
    stride *= tensor.shape[axis];
  }
  return contiguous;
}

}  // namespace

Dims ShapeOf(const DLTensor& tensor) { return Dims(tensor.shape, tensor.shape + tensor.ndim); }

std::string ArgumentName::operator()() const {
  return Cat(graph.name, ": ", role, " ", index, " \"", tensor.name, "\"");
}

void CheckKind(const DLTensor& tensor, const ArgumentName& name) {
  if (!HasDType(tensor.dtype, name.tensor.dtype)) {
    Fail(ErrorKind::kInput, name(), " has dtype ", tvm::ffi::DLDataTypeToString(tensor.dtype),
         ", expected ", tvm_byoc_dnnl::Name(name.tensor.dtype));
  }
  if (tensor.device.device_type != kDLCPU) {
    Fail(ErrorKind::kInput, name(), " is on device type ",
         static_cast<int>(tensor.device.device_type), ", expected the CPU");
  }
  if (tensor.ndim != static_cast<int>(name.tensor.shape.size())) {
    Fail(ErrorKind::kInput, name(), " has rank ", tensor.ndim, ", expected ",
         name.tensor.shape.size());
  }
}

void* CheckTensor(const DLTensor& tensor, const ArgumentName& name) {
  CheckKind(tensor, name);
  if (!IsContiguous(tensor)) {
    Fail(ErrorKind::kInput, name(), " has strides ",
         Join(Dims(tensor.strides, tensor.strides + tensor.ndim)), " for shape ",
         Join(ShapeOf(tensor)), ", expected a dense row-major tensor");
  }
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

void CheckShape(const DLTensor& tensor, const Dims& expected, const ArgumentName& name) {
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] != expected[axis]) {
      Fail(ErrorKind::kInput, name(), " has shape ", Join(ShapeOf(tensor)), ", expected ",
           Join(expected));
    }
    elements *= tensor.shape[axis];
  }
  if (tensor.data == nullptr && elements != 0) Fail(ErrorKind::kInput, name(), " has no data");
}

}  // namespace tvm_byoc_dnnl
