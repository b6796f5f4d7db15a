// SPDX-License-Identifier: Apache-2.0
// The half of the lowering that chooses: which implementation, in which layouts, over whose memory.
#include <algorithm>
#include <cstring>
#include <limits>

#include "common/support/error.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// Primitives that may write their result over this source.
int OverwritableArg(PrimitiveKind kind) {
  switch (kind) {
    case PrimitiveKind::eltwise:
    case PrimitiveKind::binary:
    case PrimitiveKind::softmax:
    case PrimitiveKind::batch_normalization:
    case PrimitiveKind::layer_normalization:
      return DNNL_ARG_SRC;
    default:
      return 0;
  }
}

bool TakesSum(PrimitiveKind kind) {
  return kind == PrimitiveKind::convolution || kind == PrimitiveKind::deconvolution ||
         kind == PrimitiveKind::matmul;
}

bool IsInput(const OpArg& arg) { return arg.arg != DNNL_ARG_DST; }

MemoryDesc Scratchpad(int64_t bytes) {
  return bytes == 0 ? MemoryDesc() : Dense({bytes}, DType::kUInt8);
}

bool IsAny(const MemoryDesc& md) { return md.get_format_kind() == dnnl::memory::format_kind::any; }

/// The products that an operation adds up; 0 where it is no product of matrices.
double ProductsOf(const OpDesc& op) {
  const Dims dst = op.Find(DNNL_ARG_DST)->md.get_dims();
  const OpArg* weights = op.Find(DNNL_ARG_WEIGHTS);
  const auto results = static_cast<double>(ElementCount(dst));
  switch (op.kind) {
    case PrimitiveKind::matmul:
      return results * static_cast<double>(op.Find(DNNL_ARG_SRC)->md.get_dims().back());
    case PrimitiveKind::convolution:
    case PrimitiveKind::deconvolution:
      return results / static_cast<double>(dst[1]) *
             static_cast<double>(ElementCount(weights->md.get_dims()));
    default:
      return 0;
  }
}

}  // namespace

/// Adds the bytes of its operands and its result to the work of a candidate.
void Lowering::CountBytes(Candidate* candidate) const {
  Work& work = candidate->work;
  work.weights = work.bytes = work.reordered = 0;
  const bool is_call = candidate->call.has_value();
  for (const OpArg& arg : is_call ? candidate->call->args : candidate->op.args) {
    const MemoryDesc md = is_call ? arg.md : QueryArg(candidate->pd, arg.arg);
    auto bytes = static_cast<double>(md.get_size());
    if (is_call && candidate->call->packing && candidate->call->packing->arg == arg.arg)
      bytes = static_cast<double>(candidate->call->packing->bytes);
    const bool constant = values_[arg.value].constant;
    (constant ? work.weights : work.bytes) += bytes;
    if (!constant && IsInput(arg) && !SameLayout(md, Layout(arg.value))) work.reordered += bytes;
  }
}

/// The cheapest primitive.
Candidate Lowering::Choose(const std::vector<OpDesc>& descriptions) {
  Candidate best;
  double least = std::numeric_limits<double>::infinity();
  for (const OpDesc& op : descriptions) {
    Candidate candidate;
    candidate.op = op;
    candidate.pd = CreatePrimitiveDesc(op, engine_, &fault_);
    if (!candidate.pd) continue;
    candidate.impl = candidate.pd.impl_info_str();
    candidate.work.products = ProductsOf(op);
    CountBytes(&candidate);
    const double cost = cost_(candidate);
    if (cost >= least) continue;
    best = std::move(candidate);
    least = cost;
  }
  return best;
}

/// The cheapest kernel of ours for this operation if it costs less than the primitive, or if there
/// is no primitive; else the primitive.
Candidate Lowering::AskKernels(Candidate primitive) const {
  double least = std::numeric_limits<double>::infinity();
  if (primitive.pd) {
    CountBytes(&primitive);  // its layouts are decided now
    least = cost_(primitive);
  }
  Candidate best = primitive;
  for (Offer offer : kOffers) {
    std::optional<Candidate> candidate = offer(primitive, *this);
    if (!candidate) continue;
    CountBytes(&*candidate);
    const double cost = cost_(*candidate);
    if (cost >= least) continue;
    best = std::move(*candidate);
    least = cost;
  }
  return best;
}

/// The same choice described otherwise, if oneDNN answers with the same implementation and the same
/// layouts of all that was left open; else nothing.
std::optional<Candidate> Lowering::Variant(const Candidate& choice, const OpDesc& op) const {
  PrimitiveDesc pd = CreatePrimitiveDesc(op, engine_);
  if (!pd || choice.impl != pd.impl_info_str()) return std::nullopt;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (!IsAny(op.args[i].md)) continue;
    int arg = op.args[i].arg;
    if (!SameLayout(QueryArg(pd, arg), QueryArg(choice.pd, arg))) return std::nullopt;
  }
  return Candidate{op, pd, choice.impl, {}, choice.work};
}

/// Where the choice would reorder an input, asks whether it runs as well on the layout that is
/// there.
void Lowering::KeepInputLayouts(Candidate* choice) const {
  for (size_t i = 0; i < choice->op.args.size(); ++i) {
    const OpArg& arg = choice->op.args[i];
    if (!IsInput(arg) || !IsAny(arg.md) || values_[arg.value].constant) continue;
    const MemoryDesc& present = Layout(arg.value);
    if (SameLayout(QueryArg(choice->pd, arg.arg), present)) continue;
    OpDesc op = choice->op;
    op.args[i].md = present;
    if (std::optional<Candidate> variant = Variant(*choice, op)) *choice = std::move(*variant);
  }
}

/// Whether nobody reads `place` of `value` after this node, so that `result` may take its memory.
bool Lowering::MayOverwrite(int value, const Place& place, int result) const {
  const Buffer& buffer = program_.buffers[place.buffer];
  if (values_[value].constant) return false;
  if (buffer.alias >= 0) {  // only the output that is delivered there, and as it is
    const MemoryDesc whole = Dense(values_[result].shape, values_[result].dtype);
    if (graph_.outputs[buffer.alias] != result || !SameLayout(place.md, whole)) return false;
  } else if (buffer.home != Home::kArena) {
    return false;
  }
  if (place.offset != 0 ||
      place.md.get_size() != static_cast<size_t>(program_.buffers[place.buffer].bytes)) {
    return false;  // a part of something
  }
  for (const Value& other : values_) {
    if (other.last_use <= current_node_) continue;
    for (const Place& p : other.places) {
      if (p.buffer == place.buffer) return false;
    }
  }
  return true;
}

/// Turns the first `add` of a dying full-size operand into a sum over its memory.
std::optional<Place> Lowering::SumInPlace(Candidate* choice) const {
  if (!TakesSum(choice->op.kind)) return std::nullopt;
  OpDesc op = choice->op;
  auto add = std::find_if(op.post_ops.begin(), op.post_ops.end(), [](const PostOpDesc& p) {
    return p.kind == PostOpDesc::Kind::kBinary && p.alg == dnnl::algorithm::binary_add &&
           IsAny(p.md);
  });
  if (add == op.post_ops.end()) return std::nullopt;
  const Value& operand = values_[add->value];
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  if (operand.dtype != values_[dst.value].dtype) return std::nullopt;
  const MemoryDesc expected = QueryArg(choice->pd, DNNL_ARG_DST);
  for (const Place& place : operand.places) {
    if (!SameLayout(place.md, expected) || !MayOverwrite(add->value, place, dst.value)) {
      continue;
    }
    auto reads = [&](int value) {  // the operation itself reads that memory in another role
      const auto& places = values_[value].places;
      return std::any_of(places.begin(), places.end(),
                         [&](const Place& p) { return p.buffer == place.buffer; });
    };
    bool shared = std::any_of(op.args.begin(), op.args.end(),
                              [&](const OpArg& a) { return IsInput(a) && reads(a.value); });
    for (auto p = op.post_ops.begin(); p != op.post_ops.end(); ++p) {
      shared |= p != add && p->kind == PostOpDesc::Kind::kBinary && reads(p->value);
    }
    for (const ScalingDesc& s : op.scalings) {
      for (int value : {s.scale, s.zero_point}) shared |= value >= 0 && reads(value);
    }
    if (shared) continue;
    add->kind = PostOpDesc::Kind::kSum;
    std::optional<Candidate> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
    return place;
  }
  return std::nullopt;
}

std::optional<Place> Lowering::OverwriteSource(const Candidate& choice) const {
  const OpArg* src = choice.op.Find(OverwritableArg(choice.op.kind));
  if (src == nullptr) return std::nullopt;
  for (const OpArg& arg : choice.op.args) {
    if (IsInput(arg) && &arg != src && arg.value == src->value) return std::nullopt;
  }
  for (const PostOpDesc& post_op : choice.op.post_ops) {
    if (post_op.value == src->value) return std::nullopt;
  }
  const MemoryDesc expected = QueryArg(choice.pd, DNNL_ARG_DST);
  const int result = choice.op.Find(DNNL_ARG_DST)->value;
  if (!SameLayout(expected, QueryArg(choice.pd, src->arg))) return std::nullopt;
  for (const Place& place : values_[src->value].places) {
    if (SameLayout(place.md, expected) && MayOverwrite(src->value, place, result)) return place;
  }
  return std::nullopt;
}

/// The place in a caller's output that this value may be written to, as the output wants it.
std::optional<Place> Lowering::OutputPlace(int value) const {
  const auto& destination = destinations_[value];
  if (!destination || values_[value].constant || output_written_[destination->output]) {
    return std::nullopt;
  }
  const int buffer = output_buffers_[destination->output];
  if (program_.buffers[buffer].alias >= 0 && IsReadFrom(buffer)) return std::nullopt;
  MemoryDesc md = Strided(values_[value].shape, values_[value].dtype, destination->strides);
  return Place{buffer, 0, md};
}

/// Whether this node or a later one reads what lies in a buffer.
bool Lowering::IsReadFrom(int buffer) const {
  return std::any_of(values_.begin(), values_.end(), [&](const Value& value) {
    return value.last_use >= current_node_ &&
           std::any_of(value.places.begin(), value.places.end(),
                       [&](const Place& place) { return place.buffer == buffer; });
  });
}

std::optional<Place> Lowering::WriteToOutput(Candidate* choice) {
  const int value = choice->op.Find(DNNL_ARG_DST)->value;
  std::optional<Place> place = OutputPlace(value);
  if (!place) return std::nullopt;
  if (!SameLayout(QueryArg(choice->pd, DNNL_ARG_DST), place->md)) {
    OpDesc op = choice->op;
    op.Find(DNNL_ARG_DST)->md = place->md;
    std::optional<Candidate> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
  }
  output_written_[destinations_[value]->output] = true;
  return place;
}

bool Lowering::Emit(const std::vector<OpDesc>& descriptions, bool accept_reference) {
  Candidate choice = Choose(descriptions);
  if (!choice.pd || (IsReference(choice.impl) && !accept_reference)) {
    choice = Candidate();
    choice.op = descriptions.front();
  }
  std::optional<Place> place;
  if (choice.pd) {
    KeepInputLayouts(&choice);
    place = WriteToOutput(&choice);
    if (!place) place = SumInPlace(&choice);
    if (!place) place = OverwriteSource(choice);
  }
  choice = AskKernels(std::move(choice));
  if (!choice.pd && !choice.call) return false;
  if (choice.call) {
    EmitCall(choice, place);
  } else {
    EmitPrimitive(choice, place);
  }
  return true;
}

/// The place of a result: the one that was found for it, or new memory.
Place Lowering::PlaceResult(int value, std::optional<Place> place, const MemoryDesc& md) {
  if (!place) return Allocate(value, md);
  place->md = md;
  SetPlace(value, *place);
  return *place;
}

void Lowering::EmitPrimitive(const Candidate& choice, const std::optional<Place>& place) {
  std::vector<StepArg> args;
  for (const OpArg& arg : choice.op.args) {
    if (IsInput(arg)) args.push_back({arg.arg, PlaceIn(arg.value, QueryArg(choice.pd, arg.arg))});
  }
  for (size_t i = 0; i < choice.op.post_ops.size(); ++i) {
    const PostOpDesc& post_op = choice.op.post_ops[i];
    if (post_op.kind != PostOpDesc::Kind::kBinary) continue;
    int arg = PostOpArg(i);
    args.push_back({arg, PlaceIn(post_op.value, QueryArg(choice.pd, arg))});
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
  args.push_back({DNNL_ARG_DST, PlaceResult(output, place, QueryArg(choice.pd, DNNL_ARG_DST))});
  AddStep(choice, std::move(args), /*conversion=*/false);
}

void Lowering::EmitCall(const Candidate& choice, const std::optional<Place>& place) {
  const KernelCall& call = *choice.call;
  auto is_sum = [&](const OpArg& arg) {  // its operand lies where the result will
    for (size_t i = 0; i < choice.op.post_ops.size(); ++i) {
      if (arg.arg == PostOpArg(i)) return choice.op.post_ops[i].kind == PostOpDesc::Kind::kSum;
    }
    return false;
  };
  Step step = KernelStep(*call.kernel, call.params);
  step.impl = choice.impl;
  step.op = choice.op;  // for reports
  for (const OpArg& arg : call.args) {
    Place at;
    if (!IsInput(arg)) {
      at = PlaceResult(arg.value, place, arg.md);
    } else if (call.packing && call.packing->arg == arg.arg) {
      at = PackFor(*call.packing, arg);
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

/// A constant in the form that a kernel makes of it once; plans for other shapes share it.
Place Lowering::PackFor(const KernelCall::Packing& packing, const OpArg& arg) {
  const MemoryDesc md = Dense({packing.bytes}, DType::kUInt8);
  const bool of_graph = arg.value < static_cast<int>(graph_.tensors.size());
  const Place packed{
      AddBuffer(/*constant=*/true, packing.bytes, {of_graph ? arg.value : -1, md, packing.kernel}),
      0, md};
  Step step = KernelStep(*packing.kernel, packing.params);
  step.conversion = true;
  step.args = {{DNNL_ARG_FROM, PlaceIn(arg.value, arg.md)}, {DNNL_ARG_TO, packed}};
  AddStep(std::move(step), MemoryDesc());
  return packed;
}

Place Lowering::NewPlace(int value, const MemoryDesc& md) {
  Place place{-1, 0, md};
  std::optional<Place> output = OutputPlace(value);
  if (output && SameLayout(output->md, md)) {
    place.buffer = output->buffer;
    output_written_[destinations_[value]->output] = true;
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

void Lowering::AddStep(const Candidate& choice, std::vector<StepArg> args, bool conversion) {
  Step step;
  step.node = current_node_;
  step.op = choice.op;
  step.pd = choice.pd;
  step.impl = choice.impl;
  step.conversion = conversion;
  step.args = std::move(args);
  AddStep(std::move(step), choice.pd.query_md(dnnl::query::scratchpad_md));
}

void Lowering::AddStep(Step step, const MemoryDesc& scratchpad) {
  const bool init = AllConstant(step.args);
  step.fault = fault_;
  if (scratchpad.get_size() > 0) {
    int buffer = AddBuffer(init, static_cast<int64_t>(scratchpad.get_size()), {-1, scratchpad});
    step.args.push_back({DNNL_ARG_SCRATCHPAD, {buffer, 0, scratchpad}});
  }
  (init ? program_.init : program_.steps).push_back(std::move(step));
}

Place Lowering::PlaceIn(int value, const MemoryDesc& md) {
  for (const Place& place : values_[value].places) {
    if (SameLayout(place.md, md)) return place;
  }
  Place to = NewPlace(value, md);
  Copy(value, value, to);
  SetPlace(value, to);
  return to;
}

void Lowering::Copy(int from, int into, const Place& part) {
  OpDesc op;
  op.kind = PrimitiveKind::reorder;
  const Place source = Primary(from);
  op.args = {{DNNL_ARG_FROM, from, source.md}, {DNNL_ARG_TO, into, part.md}};
  Candidate choice = Choose({op});
  if (!choice.pd) {
    Fail(ErrorKind::kUnsupported, "oneDNN cannot reorder ", ToString(source.md), " to ",
         ToString(part.md));
  }
  AddStep(choice, {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, part}}, /*conversion=*/true);
}

Step Lowering::KernelStep(const Kernel& kernel, std::vector<int64_t> params) const {
  Step step;
  step.node = current_node_;
  step.impl = kernel.name;
  step.kernel = &kernel;
  step.params = std::move(params);
  return step;
}

void Lowering::EmitKernel(const Kernel& kernel, std::vector<int64_t> params,
                          const std::vector<OpArg>& args, int64_t scratch_bytes) {
  EmitKernel(KernelStep(kernel, std::move(params)), args, scratch_bytes);
}

void Lowering::EmitKernel(Step step, const std::vector<OpArg>& args, int64_t scratch_bytes) {
  step.node = current_node_;
  for (const OpArg& arg : args) {
    step.args.push_back(
        {arg.arg, IsInput(arg) ? PlaceIn(arg.value, arg.md) : Allocate(arg.value, arg.md)});
  }
  AddStep(std::move(step), Scratchpad(scratch_bytes));
}

int Lowering::Pack(const Kernel& kernel, std::vector<int64_t> params,
                   const std::vector<OpArg>& args, int tensor, int64_t bytes) {
  const int packed = NewValue({bytes}, DType::kUInt8, /*constant=*/true);
  const MemoryDesc md = Dense({bytes}, DType::kUInt8);
  SetPlace(packed, {AddBuffer(/*constant=*/true, bytes, {tensor, md, &kernel}), 0, md});
  Step step = KernelStep(kernel, std::move(params));
  step.conversion = true;
  for (const OpArg& arg : args) step.args.push_back({arg.arg, PlaceIn(arg.value, arg.md)});
  step.args.push_back({DNNL_ARG_DST, Primary(packed)});
  AddStep(std::move(step), MemoryDesc());
  return packed;
}

void Lowering::Fill(int value, const std::string& element) {
  const Place& place = Primary(value);
  Step step = KernelStep(
      kFill, {static_cast<int64_t>(place.md.get_size()), static_cast<int64_t>(element.size()), 0});
  std::memcpy(&step.params.back(), element.data(), element.size());
  step.args = {{DNNL_ARG_DST, place}};
  AddStep(std::move(step), MemoryDesc());
}

}  // namespace tvm_byoc_dnnl
