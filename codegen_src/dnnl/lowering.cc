// SPDX-License-Identifier: Apache-2.0
#include "dnnl/lowering.h"

#include <algorithm>
#include <cstring>

#include "dnnl/kinds.h"
#include "support/error.h"

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

bool IsAny(const MemoryDesc& md) { return md.get_format_kind() == dnnl::memory::format_kind::any; }

}  // namespace

bool IsReference(const std::string& impl) { return impl.compare(0, 3, "ref") == 0; }

Lowering::Lowering(const Graph& graph, const Shapes& shapes, const dnnl::engine& engine)
    : graph_(graph),
      engine_(engine),
      destinations_(FindDestinations(graph, shapes)),
      output_written_(graph.outputs.size(), false) {
  std::vector<bool> constant = FindConstants(graph);
  std::vector<int> last_use = FindLastUses(graph);
  for (size_t i = 0; i < shapes.size(); ++i) {
    Value value;
    value.shape = shapes[i];
    value.dtype = graph.tensors[i].dtype;
    value.constant = constant[i];
    value.last_use = last_use[i];
    values_.push_back(std::move(value));
  }
}

Program Lowering::Run() {
  PlaceArguments();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    current_node_ = static_cast<int>(i);
    try {
      LowerNode(current_node_);
    } catch (const Error& error) {
      Shapes shapes;
      for (size_t t = 0; t < graph_.tensors.size(); ++t) shapes.push_back(values_[t].shape);
      throw Error(error.kind(), Cat("node ", i, ", ", DescribeNode(graph_, graph_.nodes[i], shapes),
                                    ": ", error.what()));
    }
  }
  current_node_ = static_cast<int>(graph_.nodes.size());
  DeliverOutputs();
  DropDeadSteps();

  std::vector<std::vector<int>> touched;
  for (const Step& step : program_.steps) {
    touched.emplace_back();
    for (const StepArg& arg : step.args) touched.back().push_back(arg.place.buffer);
  }
  program_.arena_bytes = PlaceBuffers(touched, &program_.buffers);
  return std::move(program_);
}

void Lowering::PlaceArguments() {
  auto add = [&](Home home, size_t index, int tensor) {
    Value& value = values_[tensor];
    MemoryDesc md = Dense(value.shape, value.dtype);
    program_.buffers.push_back(
        {home, static_cast<int>(index), static_cast<int64_t>(md.get_size()), 0});
    value.places.push_back({static_cast<int>(program_.buffers.size()) - 1, 0, md});
  };
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    if (graph_.inputs[i].tensor >= 0) add(Home::kInput, i, graph_.inputs[i].tensor);
  }
  for (size_t i = 0; i < graph_.constants.size(); ++i) {
    add(Home::kConstant, i, graph_.constants[i].tensor);
  }
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Value& value = values_[graph_.outputs[i]];
    int64_t bytes = ElementCount(value.shape) * SizeOf(value.dtype);
    output_buffers_.push_back(static_cast<int>(program_.buffers.size()));
    program_.buffers.push_back({Home::kOutput, static_cast<int>(i), bytes, 0});
  }
}

int Lowering::Reshaped(int value, const Dims& shape) {
  int result = NewValue(shape, values_[value].dtype, values_[value].constant);
  Place place = PlaceIn(value, Dense(values_[value].shape, values_[value].dtype));
  place.md = Dense(shape, values_[value].dtype);
  SetPlace(result, place);
  return result;
}

int Lowering::NewOutput(int value, const Dims& shape) {
  int result = NewValue(shape, values_[value].dtype, values_[value].constant);
  const auto& destination = destinations_[value];
  if (destination && destination->strides == DenseStrides(values_[value].shape)) {
    destinations_[result] = {destination->output, DenseStrides(shape)};
  }
  return result;
}

int Lowering::NewValue(const Dims& shape, DType dtype, bool constant) {
  Value value;
  value.shape = shape;
  value.dtype = dtype;
  value.constant = constant;
  value.last_use = current_node_;
  values_.push_back(std::move(value));
  destinations_.emplace_back();
  return static_cast<int>(values_.size()) - 1;
}

void Lowering::LowerNode(int index) {
  const Node& node = graph_.nodes[index];
  const KindRow& row = RowOf(node.kind);
  if (ElementCount(values_[node.output].shape) == 0) {  // nothing to compute
    Allocate(node.output, Dense(values_[node.output].shape, values_[node.output].dtype));
    return;
  }
  const std::vector<PostOpDesc> post_ops = PostOps(node);
  if (row.describe != nullptr && HasElements(node)) {
    std::vector<OpDesc> candidates = row.describe(NodeView(this, node, node.output));
    for (OpDesc& op : candidates) op.post_ops = post_ops;
    if (Emit(std::move(candidates), /*accept_reference=*/false)) return;
  }
  // Without its post-ops; they follow one by one. Until then nothing may overwrite their operands.
  int result = node.output;
  std::vector<std::pair<int, int>> last_uses;
  if (!node.post_ops.empty()) {
    result = NewValue(values_[node.output].shape, values_[node.output].dtype,
                      values_[node.output].constant);
    for (size_t i = node.own_inputs; i < node.inputs.size(); ++i) {
      int& last_use = values_[node.inputs[i]].last_use;
      last_uses.emplace_back(node.inputs[i], last_use);
      last_use = std::max(last_use, index + 1);
    }
  }
  LowerBare(NodeView(this, node, result), /*tried=*/post_ops.empty());
  if (!node.post_ops.empty()) ApplyPostOps(node, result);
  for (size_t i = last_uses.size(); i-- > 0;) {
    values_[last_uses[i].first].last_use = last_uses[i].second;
  }
}

bool Lowering::HasElements(const Node& node) const {
  return std::all_of(node.inputs.begin(), node.inputs.begin() + node.own_inputs,
                     [&](int input) { return ElementCount(values_[input].shape) != 0; });
}

/// The node without its post-ops: by its description if there is a real implementation, by its
/// lowering if it has one, else by the reference implementation. `tried`: the description has been
/// found to have no real implementation.
void Lowering::LowerBare(const NodeView& n, bool tried) {
  const KindRow& row = RowOf(n.node.kind);
  if (row.describe != nullptr) {
    if (!HasElements(n.node)) return LowerEmpty(n);
    if (!tried && Emit(row.describe(n), /*accept_reference=*/false)) return;
    if (row.lower == nullptr && Emit(row.describe(n), /*accept_reference=*/true)) return;
  }
  if (row.lower == nullptr)
    Fail(ErrorKind::kUnsupported, "oneDNN has no implementation for it here");
  row.lower(n);
}

std::vector<PostOpDesc> Lowering::PostOps(const Node& node) const {
  std::vector<PostOpDesc> result;
  const Dims& out_shape = values_[node.output].shape;
  for (const PostOp& op : node.post_ops) {
    PostOpDesc desc;
    desc.alg = ToDnnl(op.binary ? Kind::kBinary : Kind::kEltwise, op.alg);
    desc.alpha = static_cast<float>(op.alpha);
    desc.beta = static_cast<float>(op.beta);
    if (op.binary) {
      desc.kind = PostOpDesc::Kind::kBinary;
      desc.value = node.inputs[op.input];
      const Value& operand = values_[desc.value];
      desc.md = operand.shape == out_shape ? AnyLayout(operand.shape, operand.dtype)
                                           : Dense(operand.shape, operand.dtype);
    }
    result.push_back(std::move(desc));
  }
  return result;
}

void Lowering::ApplyPostOps(const Node& node, int value) {
  const DType dtype = values_[node.output].dtype;
  const Dims shape = values_[node.output].shape;
  if (dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kBool) {
    Fail(ErrorKind::kUnsupported, "oneDNN cannot fuse its post-ops, and apart they would round");
  }
  std::vector<PostOpDesc> post_ops = PostOps(node);
  for (size_t i = 0; i < post_ops.size(); ++i) {
    const PostOpDesc& post_op = post_ops[i];
    int result = i + 1 == post_ops.size() ? node.output
                                          : NewValue(shape, dtype, values_[node.output].constant);
    OpDesc op;
    op.alg = post_op.alg;
    op.args = {{DNNL_ARG_SRC, value, Layout(value)}};
    if (post_op.kind == PostOpDesc::Kind::kBinary) {
      op.kind = PrimitiveKind::binary;
      const Value& operand = values_[post_op.value];
      op.args.push_back(
          {DNNL_ARG_SRC_1, post_op.value, operand.shape == shape ? Layout(value) : post_op.md});
    } else {
      op.kind = PrimitiveKind::eltwise;
      op.alpha = post_op.alpha;
      op.beta = post_op.beta;
    }
    op.args.push_back({DNNL_ARG_DST, result, AnyLayout(shape, dtype)});
    if (!Emit({op}, /*accept_reference=*/false)) {
      if (post_op.kind == PostOpDesc::Kind::kBinary) {
        LowerBinary(this, op.alg, value, post_op.value, result);
      } else if (!Emit({op}, /*accept_reference=*/true)) {
        Fail(ErrorKind::kUnsupported, "oneDNN has no implementation of post-op ", i, " here");
      }
    }
    value = result;
  }
}

Lowering::Choice Lowering::Choose(const std::vector<OpDesc>& candidates) const {
  Choice reference;
  for (const OpDesc& op : candidates) {
    PrimitiveDesc pd = CreatePrimitiveDesc(op, engine_);
    if (!pd) continue;
    std::string impl = pd.impl_info_str();
    if (!IsReference(impl)) return {op, pd, impl};
    if (!reference.pd) reference = {op, pd, impl};
  }
  return reference;
}

/// The same choice described otherwise, if oneDNN answers with the same implementation and the same
/// layouts of all that was left open; else nothing.
std::optional<Lowering::Choice> Lowering::Variant(const Choice& choice, const OpDesc& op) const {
  PrimitiveDesc pd = CreatePrimitiveDesc(op, engine_);
  if (!pd || choice.impl != pd.impl_info_str()) return std::nullopt;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (!IsAny(op.args[i].md)) continue;
    int arg = op.args[i].arg;
    if (!SameLayout(QueryArg(pd, arg), QueryArg(choice.pd, arg))) return std::nullopt;
  }
  return Choice{op, pd, choice.impl};
}

/// Where the choice would reorder an input, asks whether it runs as well on the layout that is
/// there.
void Lowering::KeepInputLayouts(Choice* choice) const {
  for (size_t i = 0; i < choice->op.args.size(); ++i) {
    const OpArg& arg = choice->op.args[i];
    if (!IsInput(arg) || !IsAny(arg.md) || values_[arg.value].constant) continue;
    const MemoryDesc& present = Layout(arg.value);
    if (SameLayout(QueryArg(choice->pd, arg.arg), present)) continue;
    OpDesc op = choice->op;
    op.args[i].md = present;
    if (std::optional<Choice> variant = Variant(*choice, op)) *choice = std::move(*variant);
  }
}

/// Whether nobody reads `place` of `value` after this node, so that a result may take its memory.
bool Lowering::MayOverwrite(int value, const Place& place) const {
  if (program_.buffers[place.buffer].home != Home::kArena || values_[value].constant) return false;
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
std::optional<Place> Lowering::SumInPlace(Choice* choice) const {
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
    if (!SameLayout(place.md, expected) || !MayOverwrite(add->value, place)) continue;
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
    if (shared) continue;
    add->kind = PostOpDesc::Kind::kSum;
    std::optional<Choice> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
    return place;
  }
  return std::nullopt;
}

std::optional<Place> Lowering::OverwriteSource(const Choice& choice) const {
  const OpArg* src = choice.op.Find(OverwritableArg(choice.op.kind));
  if (src == nullptr) return std::nullopt;
  for (const OpArg& arg : choice.op.args) {
    if (IsInput(arg) && &arg != src && arg.value == src->value) return std::nullopt;
  }
  for (const PostOpDesc& post_op : choice.op.post_ops) {
    if (post_op.value == src->value) return std::nullopt;
  }
  const MemoryDesc expected = QueryArg(choice.pd, DNNL_ARG_DST);
  if (!SameLayout(expected, QueryArg(choice.pd, src->arg))) return std::nullopt;
  for (const Place& place : values_[src->value].places) {
    if (SameLayout(place.md, expected) && MayOverwrite(src->value, place)) return place;
  }
  return std::nullopt;
}

/// The place in a caller's output that this value may be written to, as the output wants it.
std::optional<Place> Lowering::OutputPlace(int value) const {
  const auto& destination = destinations_[value];
  if (!destination || values_[value].constant || output_written_[destination->output]) {
    return std::nullopt;
  }
  MemoryDesc md = Strided(values_[value].shape, values_[value].dtype, destination->strides);
  return Place{output_buffers_[destination->output], 0, md};
}

std::optional<Place> Lowering::WriteToOutput(Choice* choice) {
  const int value = choice->op.Find(DNNL_ARG_DST)->value;
  std::optional<Place> place = OutputPlace(value);
  if (!place) return std::nullopt;
  if (!SameLayout(QueryArg(choice->pd, DNNL_ARG_DST), place->md)) {
    OpDesc op = choice->op;
    op.Find(DNNL_ARG_DST)->md = place->md;
    std::optional<Choice> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
  }
  output_written_[destinations_[value]->output] = true;
  return place;
}

bool Lowering::Emit(std::vector<OpDesc> candidates, bool accept_reference) {
  Choice choice = Choose(candidates);
  if (!choice.pd || (!accept_reference && IsReference(choice.impl))) return false;
  KeepInputLayouts(&choice);
  const int output = choice.op.Find(DNNL_ARG_DST)->value;
  std::optional<Place> place = WriteToOutput(&choice);
  if (!place) place = SumInPlace(&choice);
  if (!place) place = OverwriteSource(choice);

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
  const MemoryDesc dst = QueryArg(choice.pd, DNNL_ARG_DST);
  if (place) {
    place->md = dst;
    SetPlace(output, *place);
  } else {
    place = Allocate(output, dst);
  }
  args.push_back({DNNL_ARG_DST, *place});
  AddStep(choice, std::move(args), /*conversion=*/false);
  return true;
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

void Lowering::AddStep(const Choice& choice, std::vector<StepArg> args, bool conversion) {
  Step step;
  step.node = current_node_;
  step.op = choice.op;
  step.pd = choice.pd;
  step.impl = choice.impl;
  step.conversion = conversion;
  step.args = std::move(args);
  bool init = AllConstant(step.args);
  const MemoryDesc scratchpad = choice.pd.query_md(dnnl::query::scratchpad_md);
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
  Choice choice = Choose({op});
  if (!choice.pd) {
    Fail(ErrorKind::kUnsupported, "oneDNN cannot reorder ", ToString(source.md), " to ",
         ToString(part.md));
  }
  AddStep(choice, {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, part}}, /*conversion=*/true);
}

void Lowering::Fill(int value, std::string element) {
  const Place& place = Primary(value);
  Step step;
  step.node = current_node_;
  step.impl = "fill";
  step.fill = std::move(element);
  step.args = {{DNNL_ARG_DST, place}};
  (AllConstant(step.args) ? program_.init : program_.steps).push_back(std::move(step));
}

/// Removes the steps whose results nothing reads: of nodes that lead nowhere, of attempts that were
/// given up.
void Lowering::DropDeadSteps() {
  std::vector<bool> needed(program_.buffers.size(), false);
  for (size_t i = 0; i < needed.size(); ++i) {
    needed[i] = program_.buffers[i].home == Home::kOutput;
  }
  auto drop = [&](std::vector<Step>* steps) {
    std::vector<Step> live;
    for (size_t i = steps->size(); i-- > 0;) {
      Step& step = (*steps)[i];
      if (!std::any_of(step.args.begin(), step.args.end(), [&](const StepArg& arg) {
            return arg.arg == DNNL_ARG_DST && needed[arg.place.buffer];
          })) {
        continue;
      }
      for (const StepArg& arg : step.args) needed[arg.place.buffer] = true;
      live.push_back(std::move(step));
    }
    std::reverse(live.begin(), live.end());
    *steps = std::move(live);
  };
  drop(&program_.steps);
  drop(&program_.init);
}

void Lowering::DeliverOutputs() {
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    int value = graph_.outputs[i];
    const Value& v = values_[value];
    if (ElementCount(v.shape) == 0) continue;
    Place output{output_buffers_[i], 0, Dense(v.shape, v.dtype)};
    bool there = std::any_of(v.places.begin(), v.places.end(), [&](const Place& place) {
      return place.buffer == output.buffer && SameLayout(place.md, output.md);
    });
    if (!there) Copy(value, value, output);
  }
}

}  // namespace tvm_byoc_dnnl
