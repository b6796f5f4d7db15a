// SPDX-License-Identifier: Apache-2.0
// What a candidate needs that calls a kernel of ours: the machine, strides and post-ops in the
// kernel's words.
#ifndef TVM_BYOC_DNNL_DNNL_KERNEL_CALL_H_
#define TVM_BYOC_DNNL_DNNL_KERNEL_CALL_H_

#include <cstring>
#include <optional>
#include <vector>

#include "dnnl/candidate.h"
#include "kernels/byoc_isa.h"
#include "kernels/byoc_post_ops.h"

namespace tvm_byoc_dnnl {

/// What the user allows the engine to use of AVX-512 and AVX2; nothing if neither.
std::optional<byoc_isa> KernelIsa();

/// Floats in a vector.
int64_t LanesOf(byoc_isa isa);

/// Bytes of the second-level cache of a core.
int64_t CacheBytes();

/// A post-op as kernels know it; nothing for one that they do not have.
std::optional<byoc_post_op_kind> KernelPostOp(const PostOpDesc& op);

/// A matrix whose rows are dense, or an image with its channels last or in blocks that are whole
/// vectors; nothing for others. The columns of a matrix count as channels.
std::optional<byoc_strides> StridesOf(const MemoryDesc& md, int64_t lanes);

/// The post-ops as the kernel knows them. Appends their operands to `args`, whose positions they
/// refer to; nothing if the kernel does not have one of them. `dst`: the layout of the result.
std::optional<std::vector<byoc_post_op>> DescribePostOps(const Candidate& primitive,
                                                         const MemoryDesc& dst, int64_t lanes,
                                                         std::vector<OpArg>* args);

/// Appends a struct of numbers to the parameters of a kernel.
template <typename T>
void Append(const T& part, std::vector<int64_t>* params) {
  static_assert(sizeof(T) % sizeof(int64_t) == 0, "parameters are numbers of 64 bits");
  const size_t old = params->size();
  params->resize(old + sizeof(T) / sizeof(int64_t));
  std::memcpy(params->data() + old, &part, sizeof(T));
}

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_KERNEL_CALL_H_
