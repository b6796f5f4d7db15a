// SPDX-License-Identifier: Apache-2.0
// Loops whose number of rounds a call knows: the VM's function of a round is called until it ends.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/dims.h"
#include "common/support/error.h"
#include "runtime/dense.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

/// As limits.py has it.
constexpr int64_t kMostRounds = int64_t{1} << 24;
/// Memory for all rounds that may come is taken at once up to this many bytes, else for a few of
/// them.
constexpr int64_t kBytesAtOnce = int64_t{1} << 26, kBytesOfFew = int64_t{1} << 16;

template <typename T>
ffi::Tensor Scalar(T value, DLDataType dtype) {
  ffi::Tensor tensor = DenseTensor({}, dtype);
  *static_cast<T*>(tensor.data_ptr()) = value;
  return tensor;
}

template <typename T>
T FirstOf(const ffi::Any& value) {
  T found;
  std::memcpy(&found, DataOf(*value.cast<ffi::Tensor>().GetDLTensorPtr()), sizeof(T));
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
  const int64_t trips = FirstOf<int64_t>(args[3]);
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
  for (int64_t round = 0; round < trips && FirstOf<bool>(go); ++round) {
    if (round == kMostRounds) {
      Fail(ErrorKind::kInput, node, " has not ended after ", kMostRounds,
           " rounds, which is the limit (MOST_ROUNDS)");
    }
    const ffi::Any number = Scalar<int64_t>(round, DLDataType{kDLInt, 64, 1});
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

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def_packed(
      "tvm_byoc_dnnl.Loop",
      [](ffi::PackedArgs args, ffi::Any* result) { Guarded([&] { Loop(args, result); }); });
}

}  // namespace
}  // namespace tvm_byoc_dnnl
