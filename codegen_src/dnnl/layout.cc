// SPDX-License-Identifier: Apache-2.0
#include "dnnl/layout.h"

#include <dnnl_debug.h>

#include <algorithm>
#include <numeric>

#include "common/memory_plan.h"
#include "common/support/error.h"
#include "dnnl/emitted/dnnl_byoc_primitive.h"

namespace tvm_byoc_dnnl {
namespace {

using DataType = dnnl::memory::data_type;

struct Row {
  DType dtype;
  DataType of_onednn;
  byoc_dtype of_kernels;
};
constexpr Row kRows[] = {
    {DType::kFloat32, DataType::f32, BYOC_F32},    {DType::kFloat16, DataType::f16, BYOC_F16},
    {DType::kBFloat16, DataType::bf16, BYOC_BF16}, {DType::kInt32, DataType::s32, BYOC_S32},
    {DType::kInt8, DataType::s8, BYOC_S8},         {DType::kUInt8, DataType::u8, BYOC_U8},
    {DType::kBool, DataType::u8, BYOC_U8}};  // 0 or 1 in a byte

const Row& RowOf(DType dtype) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const Row& known) { return known.dtype == dtype; });
  if (row == std::end(kRows))
    Fail(ErrorKind::kUnsupported, "oneDNN computes nothing in ", Name(dtype));
  return *row;
}

int64_t ElementSize(const MemoryDesc& md) {
  return static_cast<int64_t>(dnnl::memory::data_type_size(md.get_data_type()));
}

std::optional<MemoryDesc> IfNotEmpty(MemoryDesc md) {
  if (!md) return std::nullopt;
  return md;
}

}  // namespace

DataType ToDnnl(DType dtype) { return RowOf(dtype).of_onednn; }
byoc_dtype ToKernels(DType dtype) { return RowOf(dtype).of_kernels; }

bool IsOfOneDnn(DType dtype) { return dtype != DType::kFloat64 && dtype != DType::kInt64; }

Dims AtLeastRank1(const Dims& shape) { return shape.empty() ? Dims{1} : shape; }

MemoryDesc Dense(const Dims& shape, DType dtype) {
  Dims dims = AtLeastRank1(shape);
  return Strided(dims, dtype, DenseStrides(dims));
}

MemoryDesc RawLayout(const Dims& shape, DType dtype) {
  if (IsOfOneDnn(dtype)) return Dense(shape, dtype);
  Dims bytes = shape;
  bytes.push_back(SizeOf(dtype));
  return Dense(bytes, DType::kUInt8);
}

MemoryDesc Strided(const Dims& shape, DType dtype, const Dims& strides) {
  if (shape.empty()) return Dense({1}, dtype);
  if (shape.size() > DNNL_MAX_NDIMS) {
    Fail(ErrorKind::kUnsupported, "oneDNN has tensors of at most ", DNNL_MAX_NDIMS, " axes, got ",
         Join(shape));
  }
  return MemoryDesc(shape, ToDnnl(dtype), strides);
}

MemoryDesc AnyLayout(const Dims& shape, DType dtype) {
  return MemoryDesc(AtLeastRank1(shape), ToDnnl(dtype), dnnl::memory::format_tag::any);
}

MemoryDesc Ordered(const Dims& shape, DType dtype, const Dims& order) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(shape[order[i]], 1);
  }
  return Strided(shape, dtype, strides);
}

MemoryDesc ChannelsLast(const Dims& shape, DType dtype) {
  Dims order = {0};
  for (size_t i = 2; i < shape.size(); ++i) order.push_back(static_cast<int64_t>(i));
  order.push_back(1);
  return Ordered(shape, dtype, order);
}

bool IsCompact(const MemoryDesc& md) {
  return !IsStrided(md) ||
         static_cast<int64_t>(md.get_size()) == ElementCount(md.get_dims()) * ElementSize(md);
}

bool IsStrided(const MemoryDesc& md) {
  return md.get_format_kind() == dnnl::memory::format_kind::blocked && md.get_inner_nblks() == 0 &&
         md.get_padded_dims() == md.get_dims();
}

bool IsDense(const MemoryDesc& md) {
  if (!IsStrided(md)) return false;
  const Dims dims = md.get_dims();
  const Dims strides = md.get_strides();
  const Dims dense = DenseStrides(dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

bool IsAny(const MemoryDesc& md) { return md.get_format_kind() == dnnl::memory::format_kind::any; }

bool SameLayout(const MemoryDesc& a, const MemoryDesc& b) {
  return a == b || dnnl_byoc_same_layout(a.get(), b.get()) != 0;
}

std::optional<MemoryDesc> ReshapeView(const MemoryDesc& md, const Dims& shape) {
  Dims dims = AtLeastRank1(shape);
  if (IsDense(md)) return MemoryDesc(dims, md.get_data_type(), DenseStrides(dims));
  // oneDNN drops an axis of size 1 although its blocks are padded, and with it the padding.
  if (md.get_padded_dims() != md.get_dims()) return std::nullopt;
  return IfNotEmpty(md.reshape(dims, /*allow_empty=*/true));
}

MemoryDesc PermuteView(const MemoryDesc& md, const Dims& axes) {
  if (axes.empty()) return md;
  std::vector<int> to(
      axes.size());  // oneDNN asks where an axis goes, the graph says where it comes from
  for (size_t i = 0; i < axes.size(); ++i) to[axes[i]] = static_cast<int>(i);
  return md.permute_axes(to);
}

std::optional<View> SliceView(const MemoryDesc& md, const Dims& begin, const Dims& shape,
                              const Dims& steps) {
  if (IsStrided(md)) {
    Dims strides = md.get_strides();
    int64_t offset = 0;
    for (size_t i = 0; i < strides.size(); ++i) {
      offset += begin[i] * strides[i];
      strides[i] *= steps[i];
    }
    return View{MemoryDesc(shape, md.get_data_type(), strides), offset * ElementSize(md)};
  }
  if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step != 1; })) {
    return std::nullopt;
  }
  // The descriptor at offset 0, and the offset beside it: implementations take the former in more
  // cases.
  MemoryDesc at_zero = md.submemory_desc(shape, Dims(shape.size(), 0), /*allow_empty=*/true);
  MemoryDesc in_place = md.submemory_desc(shape, begin, /*allow_empty=*/true);
  if (!at_zero || !in_place) return std::nullopt;
  return View{at_zero, in_place.get_submemory_offset() * ElementSize(md)};
}

Dims AxisOrder(const MemoryDesc& md) {
  const Dims strides = md.get_strides();
  Dims order(strides.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return order;
}

std::string ToString(const MemoryDesc& md) {
  std::string text = dnnl_dt2str(static_cast<dnnl_data_type_t>(md.get_data_type()));
  text += ':';
  const Dims dims = md.get_dims();
  if (md.get_format_kind() == dnnl::memory::format_kind::any) {
    text += "any";
  } else if (md.get_format_kind() == dnnl::memory::format_kind::blocked) {
    const Dims blocks = md.get_inner_blks();
    const Dims block_axes = md.get_inner_idxs();
    for (int64_t axis : AxisOrder(md)) {
      bool blocked = std::count(block_axes.begin(), block_axes.end(), axis) > 0;
      text += static_cast<char>((blocked ? 'A' : 'a') + axis);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      text += std::to_string(blocks[i]) + static_cast<char>('a' + block_axes[i]);
    }
  } else {
    text += "opaque";
  }
  const char* separator = ":";
  for (int64_t dim : dims) {
    text += Cat(separator, dim);
    separator = "x";
  }
  return text;
}

}  // namespace tvm_byoc_dnnl
