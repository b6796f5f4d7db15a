// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 on CPUs where oneDNN does not have them: values are float32 there.
#include "common/memory_plan.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {

static constexpr Kernel kConvert = {"convert", "copy", byoc_convert};

/// An argument of the call, as it is given: the value of its tensor is made of it.
int Lowering::Given(int tensor) {
  const DType dtype = graph_.tensors[tensor].dtype;
  if (values_[tensor].dtype == dtype) return tensor;
  widened_.emplace_back(NewValue(values_[tensor].shape, dtype, values_[tensor].constant), tensor);
  return widened_.back().first;
}

void Lowering::Widen() {
  for (auto [given, tensor] : widened_) {
    if (ElementCount(values_[tensor].shape) == 0) continue;
    const bool brain = values_[given].dtype == DType::kBFloat16;
    const Dims& shape = values_[tensor].shape;
    EmitKernel(kConvert, {ElementCount(shape), brain ? BYOC_FROM_BFLOAT16 : BYOC_FROM_FLOAT16},
               {{DNNL_ARG_FROM, given, Layout(given)},
                {DNNL_ARG_TO, tensor, Dense(shape, DType::kFloat32)}});
  }
}

void Lowering::Narrow(int value, const Place& output, DType dtype) {
  const Dims& shape = values_[value].shape;
  const bool brain = dtype == DType::kBFloat16;
  Step step =
      KernelStep(kConvert, {ElementCount(shape), brain ? BYOC_TO_BFLOAT16 : BYOC_TO_FLOAT16});
  step.args = {{DNNL_ARG_FROM, PlaceIn(value, Dense(shape, DType::kFloat32))},
               {DNNL_ARG_TO, output}};
  AddStep(std::move(step), MemoryDesc());
}

}  // namespace tvm_byoc_dnnl
