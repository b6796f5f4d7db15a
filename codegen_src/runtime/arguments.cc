// SPDX-License-Identifier: Apache-2.0
#include "runtime/arguments.h"

#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
std::string ArgumentName::operator()() const {
  return Cat(graph.name, ": ", role, " ", index, " \"", tensor.name, "\"");
}

void CheckKind(const DLTensor& tensor, const ArgumentName& name) {
  if (tensor.dtype.lanes != 1 ||
      !IsStoredAs(name.tensor.dtype, tensor.dtype.code, tensor.dtype.bits)) {
    Fail(ErrorKind::kInput, name(), " has dtype ", ffi::DLDataTypeToString(tensor.dtype),
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
  if (!ffi::IsContiguous(tensor)) {
    Fail(ErrorKind::kInput, name(), " has strides ",
         Join(Dims(tensor.strides, tensor.strides + tensor.ndim)), " for shape ",
         Join(ShapeOf(tensor)), ", expected a dense row-major tensor");
  }
  return DataOf(tensor);
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
