// SPDX-License-Identifier: Apache-2.0
#include "dnnl/lowering.h"

#include <algorithm>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

constexpr Kernel kWiden = {"widen", "copy", byoc_widen};

bool Contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

/// Whether the input says where to read or write: only such may be int64.
bool IsPlaces(const Node& node, size_t input) {
  return node.kind == Kind::kGather            ? input == 1
         : node.kind == Kind::kCachedAttention ? input == 3
                                               : node.kind == Kind::kAppend && input >= 2;
}

}  // namespace

Lowering::Lowering(const Graph& graph, const Shapes& shapes, CostModel cost, const Machine& machine)
    : graph_(graph),
      cost_(std::move(cost)),
      machine_(machine),
      destinations_(FindDestinations(graph, shapes)),
      slices_(FindSlices(graph, shapes)),
      uses_(CountUses(graph)) {
  std::vector<bool> constant = FindConstants(graph);
  std::vector<int> last_use = FindLastUses(graph);
  for (size_t i = 0; i < shapes.size(); ++i) {
    Value value;
    value.shape = shapes[i];
    value.dtype = isa().ComputedIn(graph.tensors[i].dtype);
    value.constant = constant[i];
    value.last_use = last_use[i];
    values_.push_back(std::move(value));
  }
  for (const Node& node : graph.nodes) {
    if (node.kind == Kind::kAppend) Keep(node);
  }
}

void Lowering::Keep(const Node& cache) {
  for (int tensor : {cache.inputs[0], cache.output})
    values_[tensor].dtype = graph_.tensors[tensor].dtype;
}

void Lowering::Grow(const Growth& growth) {
  for (int node : growth.nodes) {
    if (graph_.nodes[node].kind == Kind::kConcat) Keep(graph_.nodes[node]);
  }
  growth_ = &growth;
  length_ = NewValue({1}, DType::kInt64, /*constant=*/false);
}

std::optional<int> Lowering::GrowingLength() const {
  if (growth_ == nullptr) return std::nullopt;
  return Contains(growth_->nodes, current_node_) ? std::make_optional(length_) : std::nullopt;
}

void Lowering::FailUnsupported(const std::string& message) const {
  Fail(ErrorKind::kUnsupported, message, fault_.empty() ? "" : "; ", fault_);
}

Program Lowering::Run() {
  for (auto& destination : destinations_) {
    if (!destination) continue;
    const int output = graph_.outputs[destination->output];
    if (values_[output].dtype != graph_.tensors[output].dtype) destination.reset();
  }
  PlaceArguments();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    current_node_ = static_cast<int>(i);
    fault_.clear();
    try {
      LowerNode(graph_.nodes[i]);
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

std::vector<const Node*> NodesOf(const Graph& graph, const Step& step) {
  std::vector<const Node*> nodes;
  if (step.inner >= 0) nodes.push_back(&graph.nodes[step.inner]);
  nodes.push_back(&graph.nodes[step.node]);
  return nodes;
}

std::vector<byoc_buffer> ListBuffers(const Program& program) {
  constexpr byoc_home kHomes[] = {BYOC_ARENA, BYOC_INPUT, BYOC_OUTPUT, BYOC_CONSTANT, BYOC_PACKED};
  std::vector<bool> resident(program.buffers.size(), false);
  for (const Step& step : program.steps) {
    for (const StepArg& arg : step.args) resident[arg.place.buffer] = true;
  }
  std::vector<byoc_buffer> buffers;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    byoc_home home = kHomes[static_cast<int>(buffer.home)];
    if (home == BYOC_PACKED && !resident[i]) home = BYOC_TEMPORARY;
    buffers.push_back({home, static_cast<size_t>(home == BYOC_ARENA ? buffer.offset : buffer.index),
                       static_cast<size_t>(buffer.bytes), buffer.alias + 1});
  }
  return buffers;
}

void Lowering::PlaceArguments() {
  auto add = [&](Home home, size_t index, int tensor) {
    Value& value = values_[tensor];
    MemoryDesc md = RawLayout(value.shape, value.dtype);
    program_.buffers.push_back(
        {home, static_cast<int>(index), static_cast<int64_t>(md.get_size()), 0});
    value.places.push_back({static_cast<int>(program_.buffers.size()) - 1, 0, md});
  };
  std::vector<std::pair<int, int>> masks;  // as given, and with room for the whole capacity
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    const Input& input = graph_.inputs[i];
    if (input.tensor < 0) continue;
    const Value& value = values_[input.tensor];
    const bool is_mask = growth_ != nullptr && Contains(growth_->masks, static_cast<int>(i));
    const int given = is_mask ? NewValue(value.shape, value.dtype, false) : Given(input.tensor);
    if (is_mask) masks.emplace_back(given, input.tensor);
    add(Home::kInput, i, given);
    program_.buffers.back().alias = input.alias;
  }
  for (size_t i = 0; i < graph_.constants.size(); ++i) {
    add(Home::kConstant, i, Given(graph_.constants[i].tensor));
  }
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const int tensor = graph_.outputs[i];
    int64_t bytes = ElementCount(values_[tensor].shape) * SizeOf(graph_.tensors[tensor].dtype);
    auto input = std::find_if(program_.buffers.begin(), program_.buffers.end(),
                              [&](const Buffer& b) { return b.alias == static_cast<int>(i); });
    outputs_.push_back({static_cast<int>(input - program_.buffers.begin())});
    if (input != program_.buffers.end()) continue;  // they are one
    program_.buffers.push_back({Home::kOutput, static_cast<int>(i), bytes, 0});
  }
  Widen();
  if (growth_ != nullptr) add(Home::kInput, graph_.inputs.size(), length_);
  for (auto [given, mask] : masks) {
    const Dims shape = values_[mask].shape;
    const MemoryDesc md = RawLayout(shape, values_[mask].dtype);
    EmitKernel(StepOf(kWiden, kWiden.name, ElementCount(Dims(shape.begin(), shape.end() - 1)),
                      shape.back(), SizeOf(values_[mask].dtype)),
               {{DNNL_ARG_SRC, given, md},
                {DNNL_ARG_SRC_1, length_, RawLayout({1}, DType::kInt64)},
                {DNNL_ARG_DST, mask, md}});
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

void Lowering::LowerNode(const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!IsPlaces(node, i)) ToDnnl(values_[node.inputs[i]].dtype);
  }
  if (ElementCount(values_[node.output].shape) == 0) {  // nothing to compute
    Allocate(node.output, Dense(values_[node.output].shape, values_[node.output].dtype));
    return;
  }
  if (node.IsScaled()) return LowerScaled(node);
  const KindRow& row = RowOf(node.kind);
  if (row.rewrite != nullptr && row.rewrite(NodeView(this, node, node.output))) return;
  NoteShuffle(node);
  // With as many of its post-ops as there is an implementation for; the others follow one by one.
  size_t fused = node.post_ops.size();
  const DType result_dtype = values_[node.output].dtype;
  if (fused > 0 && IsByte(result_dtype)) {
    if (!EmitFused(node, fused)) LowerInFloat(node);  // apart they would round
    return;
  }
  while (fused > 0 && !EmitFused(node, fused)) --fused;
  if (fused > 0) return;
  if (node.post_ops.empty()) return LowerBare(NodeView(this, node, node.output), /*tried=*/false);
  int result = NewValueLike(node.output);
  LastUses last_uses = Protect(node, 0);
  LowerBare(NodeView(this, node, result), /*tried=*/false);
  ApplyPostOps(node, 0, result);
  Restore(last_uses);
}

/// Remembers that a node shuffles channels, whose source may be read in place of its result.
void Lowering::NoteShuffle(const Node& node) {
  if (node.kind != Kind::kShuffle || node.attrs.axis != 1 || !node.post_ops.empty()) return;
  const int source = node.inputs[0];
  values_[node.output].shuffled = Shuffled{source, node.attrs.group_size};
  KeepFor(node.output, source);
}

void Lowering::NoteNormalized(int value, Normalized normalized) {
  normalized.node = current_node_;
  for (const OpArg& arg : normalized.args) KeepFor(value, arg.value);
  values_[value].normalized = std::move(normalized);
}

/// Lets nothing overwrite a source as long as it may be read in place of a value.
void Lowering::KeepFor(int value, int source) {
  values_[source].last_use = std::max(values_[source].last_use, values_[value].last_use);
}

void Lowering::LowerInSteps(const std::vector<Node>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    LastUses last_uses;
    for (size_t later = i + 1; later < nodes.size(); ++later) {  // must find what they read
      for (int input : nodes[later].inputs) {
        last_uses.emplace_back(input, values_[input].last_use);
        values_[input].last_use = std::max(values_[input].last_use, current_node_ + 1);
      }
    }
    LowerNode(nodes[i]);
    Restore(last_uses);
  }
}

/// The node and its first `count` post-ops as one primitive, then the others; false if there is no
/// implementation of that.
bool Lowering::EmitFused(const Node& node, size_t count) {
  const KindRow& row = RowOf(node.kind);
  if ((row.describe == nullptr && row.fuse == nullptr) || !HasElements(node)) return false;
  const bool is_all = count == node.post_ops.size();
  const int result = is_all ? node.output : NewValueLike(node.output);
  std::vector<PostOpDesc> post_ops = PostOps(node);
  post_ops.resize(count);
  const NodeView n(this, node, result);
  LastUses last_uses = Protect(node, count);
  bool done = false;
  if (row.fuse != nullptr) {
    done = row.fuse(n, post_ops);
  } else {
    std::vector<OpDesc> candidates = row.describe(n);
    for (OpDesc& op : candidates) {
      op.post_ops = post_ops;
      op.scalings = Scalings(node, *this, op.args[0].value != node.inputs[0]);
    }
    done = Emit(candidates, /*accept_reference=*/false);
  }
  if (done && !is_all) ApplyPostOps(node, count, result);
  Restore(last_uses);
  return done;
}

/// Lets nothing overwrite the operands of the post-ops from `first` on before these have run.
Lowering::LastUses Lowering::Protect(const Node& node, size_t first) {
  LastUses last_uses;
  for (size_t i = first; i < node.post_ops.size(); ++i) {
    if (!node.post_ops[i].binary) continue;
    const int operand = node.inputs[node.post_ops[i].input];
    int& last_use = values_[operand].last_use;
    last_uses.emplace_back(operand, last_use);
    last_use = std::max(last_use, current_node_ + 1);
  }
  return last_uses;
}

void Lowering::Restore(const LastUses& last_uses) {
  for (size_t i = last_uses.size(); i-- > 0;) {
    values_[last_uses[i].first].last_use = last_uses[i].second;
  }
}

int Lowering::NewValueLike(int value) {
  return NewValue(values_[value].shape, values_[value].dtype, values_[value].constant);
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
  if (row.lower == nullptr) FailUnsupported();
  row.lower(n);
}

std::vector<PostOpDesc> Lowering::PostOps(const Node& node) const {
  std::vector<PostOpDesc> result;
  const Dims& out_shape = values_[node.output].shape;
  for (const PostOp& op : node.post_ops) {
    PostOpDesc desc;
    desc.operation() =
        OperationOf(op.binary ? Kind::kBinary : Kind::kEltwise, op.alg, op.alpha, op.beta);
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

void Lowering::ApplyPostOps(const Node& node, size_t first, int value) {
  const DType dtype = values_[node.output].dtype;
  const Dims shape = values_[node.output].shape;
  if (dtype == DType::kBool) {
    Fail(ErrorKind::kUnsupported, "oneDNN cannot fuse its post-ops, and apart they would round");
  }
  std::vector<PostOpDesc> post_ops = PostOps(node);
  for (size_t i = first; i < post_ops.size(); ++i) {
    const PostOpDesc& post_op = post_ops[i];
    int result = i + 1 == post_ops.size() ? node.output : NewValueLike(node.output);
    OpDesc op;
    op.operation() = post_op;
    op.args = {{DNNL_ARG_SRC, value, Layout(value)}};
    if (post_op.kind == PostOpDesc::Kind::kBinary) {
      op.kind = PrimitiveKind::binary;
      const Value& operand = values_[post_op.value];
      op.args.push_back(
          {DNNL_ARG_SRC_1, post_op.value, operand.shape == shape ? Layout(value) : post_op.md});
    } else {
      op.kind = PrimitiveKind::eltwise;
    }
    op.args.push_back({DNNL_ARG_DST, result, AnyLayout(shape, dtype)});
    if (!Emit({op}, /*accept_reference=*/false)) {
      if (post_op.kind == PostOpDesc::Kind::kBinary) {
        LowerBinary(*this, op, value, post_op.value, result);
      } else if (!Emit({op}, /*accept_reference=*/true)) {
        FailUnsupported(Cat("oneDNN has no implementation of post-op ", i, " here"));
      }
    }
    value = result;
  }
}

/// Removes the steps whose results nothing reads: of nodes without readers, and of attempts that
/// failed.
void Lowering::DropDeadSteps() {
  std::vector<bool> needed(program_.buffers.size(), false);
  for (size_t i = 0; i < needed.size(); ++i) {
    needed[i] = program_.buffers[i].home == Home::kOutput || program_.buffers[i].alias >= 0;
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
    const DType dtype = graph_.tensors[value].dtype;
    Place output{outputs_[i].buffer, 0, RawLayout(v.shape, dtype)};
    if (v.dtype != dtype) value = Narrowed(value, dtype, static_cast<int>(i));
    const std::vector<Place>& places = values_[value].places;
    bool there = std::any_of(places.begin(), places.end(), [&](const Place& place) {
      return place.buffer == output.buffer && SameLayout(place.md, output.md);
    });
    if (!there) Copy(value, value, output);
  }
}

}  // namespace tvm_byoc_dnnl
