// SPDX-License-Identifier: Apache-2.0
// The part of the lowering that writes steps: their arguments, memory for values, and reorders.
#include <algorithm>
#include <cstring>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kFlush = {"flush", "copy", byoc_flush};
constexpr Kernel kConvert = {"convert", "copy", byoc_convert};

MemoryDesc Scratchpad(int64_t bytes) {
  return bytes == 0 ? MemoryDesc() : Dense({bytes}, DType::kUInt8);
}

}  // namespace

const Kernel kFill = {"fill", "copy", byoc_fill};

/// The place of a result in the memory of the concat that joins it with others, if `md` is its
/// layout there. The first of them allocates that memory.
std::optional<Place> Lowering::PlaceInConcat(int value, const MemoryDesc& md) {
  const std::optional<View> slice = SliceOfConcat(value);
  if (!slice || !SameLayout(slice->md, md)) return std::nullopt;
  const int whole = slices_[value]->whole;
  if (!HasPlace(whole)) Allocate(whole, ChannelsLast(shape(whole), dtype(whole)));
  return Place{Primary(whole).buffer, Primary(whole).offset + slice->offset, md};
}

/// The place of a result: the one that was found for it, or new memory.
Place Lowering::PlaceResult(int value, std::optional<Place> place, const MemoryDesc& md) {
  if (!place) return Allocate(value, md);
  place->md = md;
  SetPlace(value, *place);
  return *place;
}

void Lowering::EmitPrimitive(Candidate choice, const std::optional<Place>& place) {
  std::vector<StepArg> args;
  for (const OpArg& arg : choice.op.args) {
    if (!arg.IsInput()) continue;
    const auto known = static_cast<int>(program_.buffers.size());
    args.push_back({arg.arg, PlaceIn(arg.value, choice.pd.Arg(arg.arg))});
    const Place& place = args.back().place;
    const bool is_weights = arg.arg == DNNL_ARG_WEIGHTS && choice.work.products > 0 &&
                            place.md.get_data_type() == dnnl::memory::data_type::f32;
    const bool is_new = place.buffer >= known && IsConstant(arg.value);
    if (is_weights && is_new) Flush(place);
  }
  for (size_t i = 0; i < choice.op.post_ops.size(); ++i) {
    const PostOpDesc& post_op = choice.op.post_ops[i];
    if (post_op.kind != PostOpDesc::Kind::kBinary) continue;
    int arg = PostOpArg(i);
    args.push_back({arg, PlaceIn(post_op.value, choice.pd.Arg(arg))});
  }
  for (const ScalingDesc& s : choice.op.scalings) {
    auto add = [&](int attribute, int value) {
      if (value >= 0)
        args.push_back({attribute | s.arg, PlaceIn(value, Dense(shape(value), dtype(value)))});
    };
    add(DNNL_ARG_ATTR_SCALES, s.scale);
    add(DNNL_ARG_ATTR_ZERO_POINTS, s.zero_point);
  }
  const int output = choice.op.Find(DNNL_ARG_DST)->value;
  args.push_back({DNNL_ARG_DST, PlaceResult(output, place, choice.pd.Arg(DNNL_ARG_DST))});
  if (choice.pd.IsInOneRow()) {  // the step is what oneDNN was asked about
    choice.op = AlongRows(choice.op).value();
    choice.pd = choice.pd.About(choice.op);
    for (StepArg& arg : args) arg.place.md = InOneRow(arg.place.md).value();
  }
  AddStep(std::move(choice), std::move(args), /*conversion=*/false);
}

void Lowering::EmitCall(const Candidate& choice, const std::optional<Place>& place) {
  const KernelCall& call = *choice.call;
  auto is_sum = [&](const OpArg& arg) {  // its operand lies where the result will
    for (size_t i = 0; i < choice.op.post_ops.size(); ++i) {
      if (arg.arg == PostOpArg(i)) return choice.op.post_ops[i].kind == PostOpDesc::Kind::kSum;
    }
    return false;
  };
  Step step = StepOf(*call.kernel, choice.impl, call.params);
  step.op = choice.op;  // for reports
  step.inner = call.inner;
  for (const OpArg& arg : call.args) {
    Place at;
    if (!arg.IsInput()) {
      at = PlaceResult(arg.value, place ? place : PlaceInConcat(arg.value, arg.md), arg.md);
    } else if (call.packing && call.packing->arg == arg.arg) {
      const bool of_graph = arg.value < static_cast<int>(graph_.tensors.size());
      const KernelCall::Packing& packing = *call.packing;
      at = Primary(
          Pack(*packing.kernel, packing.params, {arg}, of_graph ? arg.value : -1, packing.bytes));
    } else if (is_sum(arg)) {
      at = *place;
      at.md = arg.md;
    } else {
      at = PlaceIn(arg.value, arg.md);
    }
    step.args.push_back({arg.arg, at});
  }
  AddStep(std::move(step), Scratchpad(call.scratch_bytes));
}

/// Rids packed weights of numbers that only take time.
void Lowering::Flush(const Place& weights) {
  Step step = StepOf(kFlush, kFlush.name, weights.md.get_size() / sizeof(float));
  step.conversion = true;
  step.args = {{DNNL_ARG_TO, weights}};
  AddStep(std::move(step), MemoryDesc());
}

Place Lowering::NewPlace(int value, const MemoryDesc& md) {
  Place place{-1, 0, md};
  std::optional<Place> output = OutputPlace(value);
  if (output && SameLayout(output->md, md)) {
    place.buffer = output->buffer;
    outputs_[destinations_[value]->output].is_written = true;
  } else {
    bool of_graph = value < static_cast<int>(graph_.tensors.size());
    place.buffer = AddBuffer(values_[value].constant, static_cast<int64_t>(md.get_size()),
                             {of_graph ? value : -1, md});
  }
  return place;
}

Place Lowering::Allocate(int value, const MemoryDesc& md) {
  Place place = NewPlace(value, md);
  SetPlace(value, place);
  return place;
}

int Lowering::AddBuffer(bool constant, int64_t bytes, PackedKey key) {
  Buffer buffer;
  buffer.bytes = bytes;
  if (constant) {
    buffer.home = Home::kPacked;
    buffer.index = static_cast<int>(program_.packed.size());
    program_.packed.push_back(std::move(key));
  }
  program_.buffers.push_back(buffer);
  return static_cast<int>(program_.buffers.size()) - 1;
}

bool Lowering::AllConstant(const std::vector<StepArg>& args) const {
  return std::all_of(args.begin(), args.end(), [&](const StepArg& arg) {
    Home home = program_.buffers[arg.place.buffer].home;
    return home == Home::kConstant || home == Home::kPacked;
  });
}

void Lowering::AddStep(Candidate choice, std::vector<StepArg> args, bool conversion) {
  Step step;
  step.op = std::move(choice.op);
  step.pd = std::move(choice.pd);
  step.impl = std::move(choice.impl);
  step.conversion = conversion;
  step.args = std::move(args);
  const MemoryDesc scratchpad = step.pd.Arg(DNNL_ARG_SCRATCHPAD);
  AddStep(std::move(step), scratchpad);
}

void Lowering::AddStep(Step step, const MemoryDesc& scratchpad) {
  const bool init = AllConstant(step.args);
  step.node = current_node_;
  step.fault = fault_;
  if (scratchpad.get_size() > 0) {
    int buffer = AddBuffer(init, static_cast<int64_t>(scratchpad.get_size()), {-1, scratchpad});
    step.args.push_back({DNNL_ARG_SCRATCHPAD, {buffer, 0, scratchpad}});
  }
  (init ? program_.init : program_.steps).push_back(std::move(step));
}

/// Where a value lies in a layout, if it does anywhere.
const Place* Lowering::FindPlace(int value, const MemoryDesc& md) const {
  for (const Place& place : values_[value].places) {
    if (SameLayout(place.md, md)) return &place;
  }
  return nullptr;
}

Place Lowering::PlaceIn(int value, const MemoryDesc& md) {
  if (const Place* place = FindPlace(value, md)) return *place;
  Place to = NewPlace(value, md);
  Copy(value, value, to);
  SetPlace(value, to);
  return to;
}

void Lowering::Copy(int from, int into, const Place& part) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::reorder;
  const Place source = Primary(from);
  op.args = {{DNNL_ARG_FROM, from, source.md}, {DNNL_ARG_TO, into, part.md}};
  Candidate choice = Choose({op});
  if (!choice.pd) {
    Fail(ErrorKind::kUnsupported, "oneDNN cannot reorder ", ToString(source.md), " to ",
         ToString(part.md));
  }
  AddStep(std::move(choice), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, part}}, /*conversion=*/true);
}

void Lowering::EmitKernel(Step step, const std::vector<OpArg>& args, int64_t scratch_bytes,
                          std::optional<double> seconds) {
  program_.known_seconds += seconds.value_or(0);
  program_.knows_all &= seconds.has_value();
  for (const OpArg& arg : args) {
    step.args.push_back(
        {arg.arg, arg.IsInput() ? PlaceIn(arg.value, arg.md) : Allocate(arg.value, arg.md)});
  }
  AddStep(std::move(step), Scratchpad(scratch_bytes));
}

int Lowering::Pack(const Kernel& kernel, const std::vector<int64_t>& params,
                   const std::vector<OpArg>& args, int tensor, int64_t bytes) {
  const bool constant = std::all_of(args.begin(), args.end(),
                                    [&](const OpArg& arg) { return IsConstant(arg.value); });
  const int packed = NewValue({bytes}, DType::kUInt8, constant);
  const MemoryDesc md = Dense({bytes}, DType::kUInt8);
  SetPlace(packed, {AddBuffer(constant, bytes, {tensor, md, &kernel}), 0, md});
  Step step = StepOf(kernel, kernel.name, params);
  step.conversion = true;
  for (const OpArg& arg : args) step.args.push_back({arg.arg, PlaceIn(arg.value, arg.md)});
  step.args.push_back({DNNL_ARG_DST, Primary(packed)});
  AddStep(std::move(step), MemoryDesc());
  if (kernel.packs_floats && constant) Flush(Primary(packed));
  return packed;
}

void Lowering::Fill(int value, const std::string& element) {
  const Place& place = Primary(value);
  Step step =
      StepOf(kFill, kFill.name, place.md.get_size(), element.size(), /*element=*/int64_t{0});
  std::memcpy(&step.params.back(), element.data(), element.size());
  step.args = {{DNNL_ARG_DST, place}};
  AddStep(std::move(step), MemoryDesc());
}

// bfloat16 and float16 on CPUs where oneDNN does not have them: values are float32 there.

/// An argument of the call, as it is given: the value of its tensor is made of it.
int Lowering::Given(int tensor) {
  const DType dtype = graph_.tensors[tensor].dtype;
  if (values_[tensor].dtype == dtype) return tensor;
  widened_.emplace_back(NewValue(values_[tensor].shape, dtype, values_[tensor].constant), tensor);
  return widened_.back().first;
}

void Lowering::Widen() {
  for (auto [given, tensor] : widened_) {
    if (ElementCount(values_[tensor].shape) != 0) ConvertBits(given, tensor);
  }
}

int Lowering::Narrowed(int value, DType dtype, std::optional<int> output) {
  const int made = NewValue(values_[value].shape, dtype, /*constant=*/false);
  if (output) destinations_[made] = {*output, DenseStrides(values_[value].shape)};
  ConvertBits(value, made);
  return made;
}

/// Of two values one is float32, and the other one has 16 bits.
void Lowering::ConvertBits(int from, int to) {
  const bool widens = dtype(to) == DType::kFloat32;
  const bool brain = dtype(widens ? from : to) == DType::kBFloat16;
  const int64_t how = widens ? (brain ? BYOC_FROM_BFLOAT16 : BYOC_FROM_FLOAT16)
                             : (brain ? BYOC_TO_BFLOAT16 : BYOC_TO_FLOAT16);
  EmitKernel(StepOf(kConvert, kConvert.name, ElementCount(shape(from)), how),
             {{DNNL_ARG_FROM, from, Dense(shape(from), dtype(from))},
              {DNNL_ARG_TO, to, Dense(shape(to), dtype(to))}});
}

}  // namespace tvm_byoc_dnnl
