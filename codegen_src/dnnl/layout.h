// SPDX-License-Identifier: Apache-2.0
// Memory descriptors: making them, and looking at one as another (views).
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <optional>
#include <string>

#include "common/graph.h"
#include "kernels/byoc_post_ops.h"

namespace tvm_byoc_dnnl {

using MemoryDesc = dnnl::memory::desc;

/// A dtype as oneDNN and as our kernels know it. Both throw Error(kUnsupported) for one that oneDNN
/// does not have.
dnnl::memory::data_type ToDnnl(DType dtype);
byoc_dtype ToKernels(DType dtype);
bool IsOfOneDnn(DType dtype);

/// oneDNN has no tensors of rank 0: they become [1].
Dims AtLeastRank1(const Dims& shape);

MemoryDesc Dense(const Dims& shape, DType dtype);

/// The same for any dtype: elements of a dtype that oneDNN lacks are bytes, along one more axis.
MemoryDesc RawLayout(const Dims& shape, DType dtype);
MemoryDesc Strided(const Dims& shape, DType dtype, const Dims& strides);
/// A layout that the primitive chooses ("any").
MemoryDesc AnyLayout(const Dims& shape, DType dtype);
/// Dense, with the axes in this order from the outermost to the innermost.
MemoryDesc Ordered(const Dims& shape, DType dtype, const Dims& order);

/// Dense, with the channels (axis 1) innermost.
MemoryDesc ChannelsLast(const Dims& shape, DType dtype);

/// Whether its elements are float32; or bytes, signed or not.
inline bool IsFloat(const MemoryDesc& md) {
  return md.get_data_type() == dnnl::memory::data_type::f32;
}
inline bool IsByte(const MemoryDesc& md) {
  return md.get_data_type() == dnnl::memory::data_type::u8 ||
         md.get_data_type() == dnnl::memory::data_type::s8;
}

/// Whether the primitive chooses it.
bool IsAny(const MemoryDesc& md);
/// No gaps between the elements (padding of inner blocks apart).
bool IsCompact(const MemoryDesc& md);
/// Every element once, no padding, row-major.
bool IsDense(const MemoryDesc& md);
/// Described by strides alone, without inner blocks.
bool IsStrided(const MemoryDesc& md);
/// The same elements in the same places: the layouts agree up to the strides of axes of size 1.
bool SameLayout(const MemoryDesc& a, const MemoryDesc& b);

/// A part of another layout, at an offset in bytes.
struct View {
  MemoryDesc md;
  int64_t offset = 0;
};

std::optional<MemoryDesc> ReshapeView(const MemoryDesc& md, const Dims& shape);
MemoryDesc PermuteView(const MemoryDesc& md, const Dims& axes);
std::optional<View> SliceView(const MemoryDesc& md, const Dims& begin, const Dims& shape,
                              const Dims& steps);

/// The axes from the outermost to the innermost, by stride.
Dims AxisOrder(const MemoryDesc& md);

/// "f32:acdb:1x64x56x56"
std::string ToString(const MemoryDesc& md);

}  // namespace tvm_byoc_dnnl
