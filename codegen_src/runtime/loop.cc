// SPDX-License-Identifier: Apache-2.0
// Loops whose number of rounds a call knows: the VM's function of a round is called until it ends.
// Sequences of tensors whose number a call knows: arrays of tensors that nothing writes to. And a
// copy of a tensor whose sizes a call knows.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/graph.h"
#include "common/support/error.h"
#include "runtime/arguments.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

/// As errors.py has it.
constexpr int64_t kMostRounds = int64_t{1} << 24;
/// Memory for all rounds that may come is taken at once up to this many bytes, else for a few of
/// them.
constexpr int64_t kBytesAtOnce = int64_t{1} << 26, kBytesOfFew = int64_t{1} << 16;

ffi::Tensor Scalar(int64_t value) {
  ffi::Tensor tensor = DenseTensor({}, DLDataType{kDLInt, 64, 1});
  *static_cast<int64_t*>(tensor.data_ptr()) = value;
  return tensor;
}

template <typename T>
T FirstOf(const ffi::Tensor& tensor) {
  T found;
  std::memcpy(&found, DataOf(*tensor.GetDLTensorPtr()), sizeof(T));
  return found;
}

/// A result of which each round adds one part.
class Stack {
 public:
  Stack(const ffi::Shape& empty, DLDataType dtype)
      : shape_(empty.begin(), empty.end()), dtype_(dtype) {}

  /// Copies a part behind the earlier ones; there will be at most `most`.
  void Add(const ffi::Tensor& part, int64_t most, const std::string& node) {
    const DLTensor& tensor = *part.GetDLTensorPtr();
    const Dims shape = ShapeOf(tensor);
    if (count_ == 0) {
      shape_ = shape;
      bytes_ = static_cast<int64_t>(ffi::GetDataSize(tensor));
      const int64_t width = std::max<int64_t>(bytes_, 1);
      room_ = most <= kBytesAtOnce / width ? most : std::max<int64_t>(kBytesOfFew / width, 1);
      memory_ = Room();
    } else if (shape != shape_) {
      Fail(ErrorKind::kInput, node, ": round ", count_, " adds a part of shape ", Join(shape),
           " to a result whose earlier parts have the shape ", Join(shape_));
    }
    if (count_ == room_) Resize(std::min(2 * room_, most));
    if (bytes_ > 0) {
      std::memcpy(static_cast<char*>(memory_.data_ptr()) + count_ * bytes_, DataOf(tensor), bytes_);
    }
    ++count_;
  }

  ffi::Tensor Finish() {
    if (count_ == 0 || count_ != room_) Resize(count_);
    return std::move(memory_);
  }

 private:
  ffi::Tensor Room() const {
    Dims shape = shape_;
    shape.insert(shape.begin(), room_);
    return DenseTensor(shape, dtype_);
  }

  void Resize(int64_t room) {
    room_ = room;
    ffi::Tensor larger = Room();
    if (count_ * bytes_ > 0) {
      std::memcpy(larger.data_ptr(), memory_.data_ptr(), count_ * bytes_);
    }
    memory_ = std::move(larger);
  }

  Dims shape_;
  const DLDataType dtype_;
  int64_t count_ = 0, room_ = 0, bytes_ = 0;
  ffi::Tensor memory_;
};

/// (VM, closure, node, trips, go, states, shapes of parts, their dtypes) -> (states, stacked
/// parts).
void Loop(ffi::PackedArgs args, ffi::Any* result) {
  static const ffi::Function invoke = ffi::Function::GetGlobalRequired("vm.builtin.invoke_closure");
  const std::string node(args[2].cast<ffi::String>());
  const int64_t trips = FirstOf<int64_t>(args[3].cast<ffi::Tensor>());
  ffi::Any go = args[4];
  const auto first = args[5].cast<ffi::Array<ffi::Any>>();
  std::vector<ffi::Any> states(first.begin(), first.end());
  std::vector<Stack> stacks;
  std::istringstream dtypes{std::string(args[7].cast<ffi::String>())};
  for (const ffi::Any& shape : args[6].cast<ffi::Array<ffi::Any>>()) {
    std::string dtype;
    dtypes >> dtype;
    stacks.emplace_back(shape.cast<ffi::Shape>(), ffi::StringToDLDataType(dtype));
  }
  for (int64_t round = 0; round < trips && FirstOf<bool>(go.cast<ffi::Tensor>()); ++round) {
    if (round == kMostRounds) {
      Fail(ErrorKind::kInput, node, " has not ended after ", kMostRounds,
           " rounds, which is the limit (MOST_ROUNDS)");
    }
    const ffi::Any number = Scalar(round);
    std::vector<ffi::AnyView> call{args[0], args[1], number, go};
    call.insert(call.end(), states.begin(), states.end());
    ffi::Any out;
    invoke.CallPacked(call.data(), static_cast<int32_t>(call.size()), &out);
    const auto parts = out.cast<ffi::Array<ffi::Any>>();
    const int64_t count = static_cast<int64_t>(states.size());
    go = parts[0];
    states.assign(parts.begin() + 1, parts.begin() + 1 + count);
    for (size_t i = 0; i < stacks.size(); ++i) {
      stacks[i].Add(parts[1 + count + static_cast<int64_t>(i)].cast<ffi::Tensor>(), trips, node);
    }
  }
  for (Stack& stack : stacks) states.emplace_back(stack.Finish());
  *result = ffi::Array<ffi::Any>(states.begin(), states.end());
}

using Items = ffi::Array<ffi::Tensor>;

int64_t Product(const Dims& dims, size_t from, size_t to) {
  int64_t product = 1;
  for (size_t i = from; i < to; ++i) product *= dims[i];
  return product;
}

/// The VM takes the memory of a tensor for another one when it thinks that nobody reads it.
ffi::Tensor CopyOf(const ffi::Tensor& tensor) {
  ffi::Tensor copy = DenseTensor(ShapeOf(*tensor.GetDLTensorPtr()), tensor.dtype());
  const size_t bytes = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  if (bytes > 0) std::memcpy(copy.data_ptr(), DataOf(*tensor.GetDLTensorPtr()), bytes);
  return copy;
}

/// The position of an item, or of up to `behind` more; counted from behind the items if below 0.
int64_t Position(const Items& items, const ffi::Tensor& position, int64_t behind = 0) {
  const auto count = static_cast<int64_t>(items.size());
  const auto at = FirstOf<int64_t>(position);
  if (at < -count || at >= count + behind) {
    throw ffi::Error("IndexError", Cat("the position ", at, " is out of range in a sequence"), "");
  }
  return at < 0 ? at + count : at;
}

Items Insert(const Items& items, const ffi::Tensor& item, const ffi::Tensor& position) {
  Items longer = items;
  const int64_t at = Position(items, position, 1);
  longer.insert(longer.begin() + at, CopyOf(item));
  return longer;
}

Items Append(const Items& items, const ffi::Tensor& item) {
  Items longer = items;
  longer.push_back(CopyOf(item));
  return longer;
}

Items Erase(const Items& items, const ffi::Tensor& position) {
  Items fewer = items;
  fewer.erase(fewer.begin() + Position(items, position));
  return fewer;
}

ffi::Tensor At(const Items& items, const ffi::Tensor& position) {
  return items[Position(items, position)];
}

ffi::Tensor Length(const Items& items) { return Scalar(static_cast<int64_t>(items.size())); }

/// All items one behind the other along an axis, which is a new one if they are stacked.
ffi::Tensor Concat(const Items& items, int64_t axis, bool stacks) {
  if (items.empty()) Fail(ErrorKind::kInput, "a sequence without items has no concatenation");
  Dims shape = ShapeOf(*items[0].GetDLTensorPtr());
  const auto rank = static_cast<int64_t>(shape.size()) + (stacks ? 1 : 0);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) {
    Fail(ErrorKind::kInput, "items of ", rank, " axes have no axis ", axis);
  }
  if (stacks) shape.insert(shape.begin() + axis, 0);
  shape[axis] = 0;
  std::vector<Dims> own;
  for (const ffi::Tensor& item : items) {
    Dims dims = ShapeOf(*item.GetDLTensorPtr());
    if (stacks && static_cast<int64_t>(dims.size()) < rank) dims.insert(dims.begin() + axis, 1);
    Dims others = dims;
    if (others.size() == shape.size()) others[axis] = shape[axis];
    if (others != shape || item.dtype() != items[0].dtype()) {
      Fail(ErrorKind::kInput, "an item of shape ", Join(dims),
           " cannot be put behind others of shape ", Join(shape), " along axis ", axis);
    }
    own.push_back(std::move(dims));
    shape[axis] += own.back()[axis];
  }
  ffi::Tensor result = DenseTensor(shape, items[0].dtype());
  const int64_t outer = Product(shape, 0, axis);
  const int64_t width = Product(shape, axis + 1, shape.size()) * ((items[0].dtype().bits + 7) / 8);
  char* begin = static_cast<char*>(result.data_ptr());
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t bytes = own[i][axis] * width;
    for (int64_t row = 0; row < outer && bytes > 0; ++row) {
      std::memcpy(begin + row * shape[axis] * width,
                  DataOf(*items[i].GetDLTensorPtr()) + row * bytes, static_cast<size_t>(bytes));
    }
    begin += bytes;
  }
  return result;
}

/// The parts of a tensor along an axis: of sizes that a vector gives, or of one size and a rest.
/// Without `keeps`, parts of one element lose the axis.
Items Split(const ffi::Tensor& whole, const ffi::Tensor& split, int64_t axis, bool keeps) {
  const DLTensor& tensor = *whole.GetDLTensorPtr();
  Dims shape = ShapeOf(tensor);
  const auto* given = reinterpret_cast<const int64_t*>(DataOf(*split.GetDLTensorPtr()));
  const int64_t size = shape[axis];
  std::vector<int64_t> sizes;
  if (split.ndim() == 0) {
    for (int64_t at = 0; at < size && *given > 0; at += *given)
      sizes.push_back(std::min(*given, size - at));
  } else {
    sizes.assign(given, given + split.size(0));
  }
  int64_t rest = size;
  for (const int64_t own : sizes) rest = own < 0 || own > rest ? -1 : rest - own;
  if (rest != 0) {
    Fail(ErrorKind::kInput, "a split gives the parts ", Join(sizes), "; expected together the ",
         size, " elements of axis ", axis);
  }
  const int64_t outer = Product(shape, 0, axis);
  const int64_t width = Product(shape, axis + 1, shape.size()) * ((whole.dtype().bits + 7) / 8);
  const char* from = DataOf(tensor);
  Items parts;
  for (const int64_t own : sizes) {
    shape[axis] = own;
    Dims dims = shape;
    if (!keeps) dims.erase(dims.begin() + axis);
    ffi::Tensor part = DenseTensor(dims, whole.dtype());
    for (int64_t row = 0; row < outer && own * width > 0; ++row) {
      std::memcpy(static_cast<char*>(part.data_ptr()) + row * own * width,
                  from + row * size * width, own * width);
    }
    from += own * width;
    parts.push_back(std::move(part));
  }
  return parts;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def_packed(
          "tvm_byoc_dnnl.Loop",
          [](ffi::PackedArgs args, ffi::Any* result) { Guarded([&] { Loop(args, result); }); })
      .def("tvm_byoc_dnnl.Copy", Door(CopyOf))
      .def_packed("tvm_byoc_dnnl.Sequence",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    Guarded([&] {
                      Items items;
                      for (int i = 0; i < args.size(); ++i) {
                        items.push_back(CopyOf(args[i].cast<ffi::Tensor>()));
                      }
                      *result = items;
                    });
                  })
      .def("tvm_byoc_dnnl.SequenceInsert", Door(Insert))
      .def("tvm_byoc_dnnl.SequenceAppend", Door(Append))
      .def("tvm_byoc_dnnl.SequenceErase", Door(Erase))
      .def("tvm_byoc_dnnl.SequenceSplit", Door(Split))
      .def("tvm_byoc_dnnl.SequenceAt", Door(At))
      .def("tvm_byoc_dnnl.SequenceLength", Door(Length))
      .def("tvm_byoc_dnnl.SequenceConcat", Door(Concat));
}

}  // namespace
}  // namespace tvm_byoc_dnnl
