// SPDX-License-Identifier: Apache-2.0
#include "runtime/cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "byoc_plan.h"
#include "common/growth.h"
#include "common/memory_plan.h"
#include "common/support/error.h"
#include "runtime/arguments.h"
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr int64_t kParallelBytes = 1 << 20;

thread_local bool uses_caches = false;

Dims StridesOf(const DLTensor& tensor) {
  return tensor.strides == nullptr ? DenseStrides(ShapeOf(tensor))
                                   : Dims(tensor.strides, tensor.strides + tensor.ndim);
}

/// Memory with room for more rows along an axis.
class CacheBuffer {
 public:
  /// `filled`: rows of each sequence that are not free, or of all.
  CacheBuffer(Dims room, int64_t axis, const Dims& filled, size_t bytes)
      : room_(std::move(room)),
        axis_(axis),
        filled_(filled.size() > 1 ? filled : Dims(axis == 0 ? 1 : room_[0], filled[0])),
        bytes_(bytes),
        data_(byoc_allocate(bytes)) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~CacheBuffer();
  CacheBuffer(const CacheBuffer&) = delete;
  CacheBuffer& operator=(const CacheBuffer&) = delete;

  char* data() const { return data_; }
  int64_t axis() const { return axis_; }
  int64_t rows() const { return room_[axis_]; }
  bool Holds(const char* at) const { return at >= data_ && at < data_ + bytes_; }

  Dims Strides() const { return DenseStrides(room_); }

  size_t SequenceBytes() const { return bytes_ / filled_.size(); }

  /// The first of the sequences whose first rows a tensor shows, if it does: strides of axes of one
  /// element mean nothing.
  std::optional<int64_t> FirstShown(const DLTensor& tensor) const {
    if (tensor.ndim != static_cast<int>(room_.size())) return std::nullopt;
    const auto place = static_cast<size_t>(DataOf(tensor) - data_);
    const auto first = static_cast<int64_t>(place / SequenceBytes());
    if (place % SequenceBytes() != 0) return std::nullopt;
    const Dims strides = Strides(), own = StridesOf(tensor);
    for (int i = 0; i < tensor.ndim; ++i) {
      if (tensor.shape[i] != 1 && own[i] != strides[i]) return std::nullopt;
      const int64_t room = i == 0 ? room_[0] - first : room_[i];
      if (i == axis_ || i == 0 ? tensor.shape[i] > room : tensor.shape[i] != room) {
        return std::nullopt;
      }
    }
    return first;
  }

  /// Takes these rows for a caller, who shows `shown` rows of `sequences` and will show `length`;
  /// false if they are not free.
  bool Claim(const NewRows& rows, int64_t first, int64_t sequences, int64_t shown, int64_t length) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (length > room_[axis_]) return false;
    if (axis_ == 0) sequences = 1;
    const auto of = [&](const Dims& all, int64_t i) { return all[all.size() == 1 ? 0 : i]; };
    for (int64_t i = 0; i < sequences; ++i) {
      if (of(rows.starts, i) < filled_[first + i] || of(rows.starts, i) > shown) return false;
    }
    for (int64_t i = 0; i < sequences; ++i) filled_[first + i] = of(rows.ends, i);
    return true;
  }

  /// Gives back the rows behind these, of the sequences from `first` on.
  void Release(int64_t first, const Dims& lengths) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::copy(lengths.begin(), lengths.end(), filled_.begin() + first);
  }

 private:
  const Dims room_;
  const int64_t axis_;
  std::mutex mutex_;
  Dims filled_;  // rows of each sequence that views may show
  const size_t bytes_;
  char* const data_;
};

/// The buffers that live, by their memory.
struct Registry {
  std::mutex mutex;
  std::map<const char*, std::weak_ptr<CacheBuffer>> buffers;
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

std::shared_ptr<CacheBuffer> NewBuffer(const Dims& room, int64_t axis, const Dims& filled,
                                       DLDataType dtype) {
  size_t bytes = dtype.bits / 8;
  for (int64_t dim : room) bytes *= static_cast<size_t>(dim);
  auto buffer = std::make_shared<CacheBuffer>(room, axis, filled, bytes);
  std::lock_guard<std::mutex> lock(Buffers().mutex);
  Buffers().buffers[buffer->data()] = buffer;
  return buffer;
}

/// Sequences of a buffer, and the first one.
struct Place {
  std::shared_ptr<CacheBuffer> buffer;
  int64_t first = 0;

  char* data() const { return buffer->data() + first * buffer->SequenceBytes(); }
};

/// Where the rows are that a tensor shows, if they are the first ones of sequences of a buffer.
std::optional<Place> Find(const DLTensor& tensor, int64_t axis) {
  const char* address = DataOf(tensor);
  std::shared_ptr<CacheBuffer> buffer;
  {
    std::lock_guard<std::mutex> lock(Buffers().mutex);
    auto behind = Buffers().buffers.upper_bound(address);
    if (behind != Buffers().buffers.begin()) buffer = std::prev(behind)->second.lock();
  }
  if (buffer == nullptr || !buffer->Holds(address) || buffer->axis() != axis) return std::nullopt;
  const std::optional<int64_t> first = buffer->FirstShown(tensor);
  if (!first) return std::nullopt;
  return Place{std::move(buffer), *first};
}

/// Shares a buffer with a tensor.
struct View {
  Place place;
  void AllocData(DLTensor* tensor) { tensor->data = place.data(); }
  void FreeData(DLTensor*) {}
};

ffi::Tensor ViewOf(Place place, const Dims& shape, DLDataType dtype) {
  const Dims strides = place.buffer->Strides();
  return ffi::Tensor::FromNDAllocStrided(
      View{std::move(place)}, ffi::ShapeView(shape.data(), shape.size()),
      ffi::ShapeView(strides.data(), strides.size()), dtype, DLDevice{kDLCPU, 0});
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
  const char* source = DataOf(from);
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

/// Rows of each sequence, or of all, that the tensor shows and nobody has written are 0.
void ClearGaps(const Place& place, const Dims& shape, const Dims& written, int64_t width) {
  const int64_t axis = place.buffer->axis(), length = shape[axis];
  int64_t heads = 1, row = width;
  for (int64_t i = 0; i < axis; ++i) heads *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) row *= shape[i];
  const auto sequences = static_cast<int64_t>(written.size());
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t end = written[head * sequences / heads];
    if (end < length) {
      std::memset(place.data() + (head * place.buffer->rows() + end) * row, 0,
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
  std::optional<Place> place = Find(past, axis);
  if (!place || !place->buffer->Claim(new_rows, place->first, shape[0], rows, length)) {
    Dims room = shape;
    room[axis] = std::max(CacheCapacity(length), place ? place->buffer->rows() : 0);
    place = Place{NewBuffer(room, axis, new_rows.ends, past.dtype)};
    if (rows != 0) Copy(past, place->data(), place->buffer->Strides());
  }
  Dims written = new_rows.ends;  // of what the tensor did not show before
  for (size_t i = 0; i < written.size(); ++i) {
    written[i] = new_rows.starts[i] <= rows ? std::max(rows, written[i]) : rows;
  }
  ClearGaps(*place, shape, written, past.dtype.bits / 8);
  return ViewOf(*std::move(place), shape, past.dtype);
}

int64_t CacheRows(const DLTensor& tensor, int64_t axis) {
  const std::optional<Place> place = Find(tensor, axis);
  return place ? place->buffer->rows() : 0;
}

ffi::Tensor NewCache(const ffi::Shape& room, int64_t axis, DLDataType dtype) {
  const Dims shape(room.begin(), room.end());
  if (axis < 1 || axis >= static_cast<int64_t>(shape.size()) ||
      *std::min_element(shape.begin(), shape.end()) < 1) {
    Fail(ErrorKind::kInput, "there is no cache with room for nothing");
  }
  return ViewOf({NewBuffer(shape, axis, {0}, dtype)}, shape, dtype);
}

ffi::Tensor ShowCache(const ffi::Tensor& cache, int64_t axis, int64_t first,
                      const ffi::Shape& lengths) {
  const DLTensor& whole = *cache.GetDLTensorPtr();
  std::optional<Place> place = Find(whole, axis);
  const Dims rows(lengths.begin(), lengths.end());
  const auto sequences = static_cast<int64_t>(rows.size());
  if (!place || rows.empty() || first < 0 || first + sequences > whole.shape[0] ||
      *std::min_element(rows.begin(), rows.end()) < 0 ||
      *std::max_element(rows.begin(), rows.end()) > whole.shape[axis]) {
    Fail(ErrorKind::kInput, "no cache has ", sequences, " sequences behind ", first);
  }
  place->first += first;
  place->buffer->Release(place->first, rows);
  Dims shape = ShapeOf(whole);
  shape[0] = sequences;
  shape[axis] = *std::max_element(rows.begin(), rows.end());
  ClearGaps(*place, shape, rows, whole.dtype.bits / 8);
  return ViewOf(*std::move(place), shape, whole.dtype);
}

}  // namespace tvm_byoc_dnnl
