// SPDX-License-Identifier: Apache-2.0
#include "runtime/cache.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "byoc_plan.h"
#include "common/growth.h"
#include "common/support/error.h"
#include "runtime/dense.h"
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kParallelBytes = 1 << 20;

thread_local bool uses_caches = false;

/// Memory with room for more rows along an axis.
class CacheBuffer {
 public:
  CacheBuffer(Dims room, int64_t axis, Dims filled, size_t bytes)
      : room_(std::move(room)),
        axis_(axis),
        filled_(std::move(filled)),
        data_(byoc_allocate(bytes)) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~CacheBuffer();
  CacheBuffer(const CacheBuffer&) = delete;
  CacheBuffer& operator=(const CacheBuffer&) = delete;

  char* data() const { return data_; }
  int64_t axis() const { return axis_; }

  Dims Strides() const {
    Dims strides(room_.size(), 1);
    for (size_t i = room_.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * room_[i];
    return strides;
  }

  /// Whether a tensor shows the first rows: strides of axes of one element mean nothing.
  bool Shows(const DLTensor& tensor) const {
    if (tensor.ndim != static_cast<int>(room_.size())) return false;
    const Dims strides = Strides();
    int64_t dense = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      const int64_t stride = tensor.strides == nullptr ? dense : tensor.strides[i];
      dense *= tensor.shape[i];
      if (tensor.shape[i] != 1 && stride != strides[i]) return false;
      if (i == axis_ ? tensor.shape[i] > room_[i] : tensor.shape[i] != room_[i]) return false;
    }
    return true;
  }

  /// Takes these rows for a caller, who shows `shown` rows and will show `length`; false if they
  /// are not free.
  bool Claim(const NewRows& rows, int64_t shown, int64_t length) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (length > room_[axis_] || filled_.size() != rows.starts.size()) return false;
    for (size_t i = 0; i < filled_.size(); ++i) {
      if (rows.starts[i] < filled_[i] || rows.starts[i] > shown) return false;
    }
    filled_ = rows.ends;
    return true;
  }

 private:
  const Dims room_;
  const int64_t axis_;
  std::mutex mutex_;
  Dims filled_;  // rows of each sequence that views may show
  char* const data_;
};

/// The buffers that live, by their memory.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<CacheBuffer>> buffers;
};

Registry& Buffers() {
  static auto* registry = new Registry;  // outlives all buffers
  return *registry;
}

CacheBuffer::~CacheBuffer() {
  {
    std::lock_guard<std::mutex> lock(Buffers().mutex);
    Buffers().buffers.erase(data_);
  }
  byoc_free(data_);
}

std::shared_ptr<CacheBuffer> Find(const DLTensor& tensor) {
  std::lock_guard<std::mutex> lock(Buffers().mutex);
  auto found = Buffers().buffers.find(static_cast<char*>(tensor.data) + tensor.byte_offset);
  return found == Buffers().buffers.end() ? nullptr : found->second.lock();
}

/// Shares a buffer with a tensor.
struct View {
  std::shared_ptr<CacheBuffer> buffer;
  void AllocData(DLTensor* tensor) { tensor->data = buffer->data(); }
  void FreeData(DLTensor*) {}
};

ffi::Tensor ViewOf(std::shared_ptr<CacheBuffer> buffer, const Dims& shape, DLDataType dtype) {
  const Dims strides = buffer->Strides();
  return ffi::Tensor::FromNDAllocStrided(
      View{std::move(buffer)}, ffi::ShapeView(shape.data(), shape.size()),
      ffi::ShapeView(strides.data(), strides.size()), dtype, DLDevice{kDLCPU, 0});
}

Dims StridesOf(const DLTensor& tensor) {
  if (tensor.strides != nullptr) return Dims(tensor.strides, tensor.strides + tensor.ndim);
  Dims strides(tensor.ndim, 1);
  for (int i = tensor.ndim - 1; i > 0; --i) strides[i - 1] = strides[i] * tensor.shape[i];
  return strides;
}

/// Copies a tensor into memory of other strides.
void Copy(const DLTensor& from, char* to, const Dims& to_strides) {
  const Dims from_strides = StridesOf(from);
  const auto width = static_cast<int64_t>(from.dtype.bits / 8);
  int outer_axes = from.ndim;  // those behind them are dense in both
  int64_t inner = 1, outer = 1;
  while (outer_axes > 0) {
    const int axis = outer_axes - 1;
    if (from.shape[axis] != 1 && (from_strides[axis] != inner || to_strides[axis] != inner)) break;
    inner *= from.shape[axis];
    --outer_axes;
  }
  for (int axis = 0; axis < outer_axes; ++axis) outer *= from.shape[axis];
  const char* source = static_cast<const char*>(from.data) + from.byte_offset;
  const bool alone = outer * inner * width <= kParallelBytes;
  OnTeam(alone ? 1 : byoc_threads(), [&](int64_t part, int64_t parts) {
    for (int64_t i = outer * part / parts; i < outer * (part + 1) / parts; ++i) {
      int64_t rest = i, read = 0, written = 0;
      for (int axis = outer_axes - 1; axis >= 0; --axis) {
        const int64_t index = rest % from.shape[axis];
        rest /= from.shape[axis];
        read += index * from_strides[axis];
        written += index * to_strides[axis];
      }
      std::memcpy(to + written * width, source + read * width, static_cast<size_t>(inner * width));
    }
    return 0;
  });
}

/// Rows behind the end of a sequence that the tensor did not have before and nobody writes are 0.
void ClearGaps(const CacheBuffer& buffer, const Dims& shape, int64_t before, const NewRows& rows,
               int64_t width) {
  const int64_t axis = buffer.axis(), length = shape[axis];
  int64_t heads = 1, row = width;
  for (int64_t i = 0; i < axis; ++i) heads *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) row *= shape[i];
  const int64_t room = buffer.Strides()[axis > 0 ? axis - 1 : 0] * width / row;
  const auto sequences = static_cast<int64_t>(rows.starts.size());
  for (int64_t head = 0; head < heads; ++head) {
    const auto of = static_cast<size_t>(head * sequences / heads);
    const int64_t end = rows.starts[of] <= before ? std::max(before, rows.ends[of]) : before;
    if (end < length) {
      std::memset(buffer.data() + (head * room + end) * row, 0,
                  static_cast<size_t>((length - end) * row));
    }
  }
}

}  // namespace

bool UseCaches(bool use) { return std::exchange(uses_caches, use); }

ffi::Tensor GrowCache(const DLTensor& past, const Dims& shape, int64_t axis,
                      const NewRows& new_rows) {
  const int64_t rows = past.shape[axis], length = shape[axis];
  int64_t elements = 1;
  for (int64_t dim : shape) elements *= dim;
  if (!uses_caches || elements == 0) {
    return DenseTensor(shape, past.dtype);
  }
  std::shared_ptr<CacheBuffer> buffer = rows == 0 ? nullptr : Find(past);
  if (buffer == nullptr || !buffer->Shows(past) || buffer->axis() != axis ||
      !buffer->Claim(new_rows, rows, length)) {
    Dims room = shape;
    room[axis] = CacheCapacity(length);
    const auto bytes = static_cast<size_t>(elements / length * room[axis] * past.dtype.bits / 8);
    buffer = std::make_shared<CacheBuffer>(room, axis, new_rows.ends, bytes);
    {
      std::lock_guard<std::mutex> lock(Buffers().mutex);
      Buffers().buffers[buffer->data()] = buffer;
    }
    if (rows != 0) Copy(past, buffer->data(), buffer->Strides());
  }
  ClearGaps(*buffer, shape, rows, new_rows, past.dtype.bits / 8);
  return ViewOf(std::move(buffer), shape, past.dtype);
}

bool IsCache(const DLTensor& tensor, int64_t axis) {
  const std::shared_ptr<CacheBuffer> buffer = Find(tensor);
  return buffer != nullptr && buffer->axis() == axis && buffer->Shows(tensor);
}

}  // namespace tvm_byoc_dnnl
