// SPDX-License-Identifier: Apache-2.0
// Parts of a candidate that calls a kernel of ours: strides and post-ops in the form that
// kernels take.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dnnl/lowering.h"
#include "kernels/byoc_isa.h"
#include "kernels/byoc_post_ops.h"

namespace tvm_byoc_dnnl {

/// "product:avx2": the name that reports show; ":c" for no instruction set.
std::string KernelImpl(const std::string& name, int64_t isa);

/// A matrix whose rows are dense, or an image with its channels last or in blocks that are whole
/// vectors; nothing for others. The rows of a matrix are pixels, and its columns channels.
std::optional<byoc_strides> StridesOf(const MemoryDesc& md, int64_t lanes);

/// How a kernel reads the operands of its post-ops. A number for each channel, or for all, is dense
/// float32; where there is one for each element of the result, `place` notes where they lie, and
/// answers false if the kernel does not read them there.
struct Operands {
  std::vector<MemoryDesc> layouts;  // one for each post-op
  std::function<bool(const PostOpDesc& post_op, const MemoryDesc& md, byoc_post_op* op)> place;
  size_t channels = 1;  // the axis of the result
};

/// As StridesOf has them.
Operands OperandsWithStrides(std::vector<MemoryDesc> layouts, int64_t lanes);

/// The post-ops on a result of this shape as kernels know them. Appends their operands to `args`,
/// whose positions they refer to; nothing if kernels do not have one of them.
std::optional<std::vector<byoc_post_op>> DescribePostOps(const std::vector<PostOpDesc>& post_ops,
                                                         const Operands& operands, const Dims& dst,
                                                         std::vector<OpArg>* args);

/// What all kernels have that compute in float32, with constant weights, in the place of a
/// primitive.
struct KernelFrame {
  byoc_convolution of{};
  std::vector<OpArg> args;  // as of KernelCall
  std::vector<byoc_post_op> post_ops;
};

/// Nothing where no such kernel can take the place of the primitive. Arguments lie in the layouts
/// of the primitive, but for weights, and for a source that the kernel `reads` in the layout that
/// it has, or whose channels are images of their own, or both.
enum class Reads { kAsPrimitive, kAsPresent, kPlanes, kPresentPlanes };
std::optional<KernelFrame> FrameOf(const Candidate& primitive, const Lowering& values,
                                   Reads reads = Reads::kAsPrimitive);

/// Where kernels find the weights of an operation before they pack them: as they lie, or row-major
/// where their strides are not even; and these strides.
MemoryDesc WeightsOf(const OpDesc& op, const Lowering& values, byoc_weight_strides* strides);

/// Whether all strides, dilations or paddings are this one.
inline bool AllAre(int64_t value, const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [&](int64_t dim) { return dim == value; });
}

/// Appends a struct of numbers to the parameters of a kernel, or a list of such.
template <typename T>
void Append(const T& part, std::vector<int64_t>* params) {
  static_assert(sizeof(T) % sizeof(int64_t) == 0, "parameters are numbers of 64 bits");
  const size_t old = params->size();
  params->resize(old + sizeof(T) / sizeof(int64_t));
  std::memcpy(params->data() + old, &part, sizeof(T));
}
template <typename T>
void Append(const std::vector<T>& parts, std::vector<int64_t>* params) {
  for (const T& part : parts) Append(part, params);
}
template <typename... Parts>
std::vector<int64_t> AsParams(const Parts&... parts) {
  std::vector<int64_t> params;
  (Append(parts, &params), ...);
  return params;
}

/// A step that calls a kernel.
template <typename... Parts>
Step StepOf(const Kernel& kernel, std::string impl, const Parts&... params) {
  Step step;
  step.impl = std::move(impl);
  step.kernel = &kernel;
  step.params = AsParams(params...);
  return step;
}

/// A call of a kernel with its parameters, the post-ops behind them, and the arguments of the
/// frame. By the same parameters `pack` makes the form of the constant weights that it reads.
template <typename T>
KernelCall CallOf(const Kernel& kernel, const Kernel& pack, const T& params,
                  const KernelFrame& frame, size_t scratch_bytes, size_t packed_bytes) {
  KernelCall call;
  call.kernel = &kernel;
  call.args = frame.args;
  call.params = AsParams(params, frame.post_ops);
  call.scratch_bytes = static_cast<int64_t>(scratch_bytes);
  call.packing = {DNNL_ARG_WEIGHTS, &pack, AsParams(params), static_cast<int64_t>(packed_bytes)};
  return call;
}

/// The convolution of images that a primitive computes, without the places of their numbers. A
/// convolution of rows is one of images of one row; a product of matrices is one of 1x1 of such.
byoc_convolution ConvolutionOf(const OpDesc& op, const Dims& src, const Dims& dst,
                               const Machine& machine);

}  // namespace tvm_byoc_dnnl
