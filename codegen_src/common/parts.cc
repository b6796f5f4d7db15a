// SPDX-License-Identifier: Apache-2.0
#include "common/parts.h"

#include <algorithm>
#include <utility>

namespace tvm_byoc_dnnl {
namespace {

/// Checks one symbol.
class Prover {
 public:
  Prover(const Graph& graph, int symbol) : graph_(graph), symbol_(symbol) {}

  bool Holds() const {
    for (const Tensor& tensor : graph_.tensors) {
      const auto begin = tensor.shape.begin(), end = tensor.shape.end();
      const bool is_batch = begin != end && IsSymbol(*begin);
      if (std::any_of(begin + (is_batch ? 1 : 0), end,
                      [&](const Dim& dim) { return Mentions(dim, symbol_); }))
        return false;
    }
    const auto& inputs = graph_.inputs;
    return std::all_of(inputs.begin(), inputs.end(), [](const Input& i) { return i.alias < 0; }) &&
           std::any_of(inputs.begin(), inputs.end(),
                       [&](const Input& i) { return i.tensor >= 0 && IsBatch(i.tensor); }) &&
           All(graph_.outputs) &&
           std::all_of(graph_.nodes.begin(), graph_.nodes.end(),
                       [&](const Node& node) { return IsApart(node); });
  }

 private:
  const std::vector<Dim>& Shape(int tensor) const { return graph_.tensors[tensor].shape; }
  bool IsSymbol(const Dim& dim) const { return dim.op == Dim::Op::kSymbol && dim.value == symbol_; }
  bool IsBatch(int tensor) const { return !Shape(tensor).empty() && IsSymbol(Shape(tensor)[0]); }

  /// Nothing but one row, which all samples read.
  bool IsRepeated(int tensor) const {
    const std::vector<Dim>& shape = Shape(tensor);
    return !shape.empty() && shape[0].op == Dim::Op::kConst && shape[0].value == 1;
  }
  /// Of the tensors from `first` on.
  bool All(const std::vector<int>& tensors, size_t first = 0) const {
    return std::all_of(tensors.begin() + first, tensors.end(), [&](int t) { return IsBatch(t); });
  }
  bool None(const std::vector<int>& tensors, size_t first = 0) const {
    return std::none_of(tensors.begin() + first, tensors.end(), [&](int t) { return IsBatch(t); });
  }
  bool IsBatchOrRepeated(int tensor) const { return IsBatch(tensor) || IsRepeated(tensor); }

  /// Whether the node computes each sample from the same sample of what it reads.
  bool IsApart(const Node& node) const {
    const std::vector<int> reads = node.Reads();
    if (None(reads) && !IsBatch(node.output)) return true;  // the same for all samples
    if (!IsBatch(node.output)) return false;
    const auto post_ops = node.inputs.begin() + node.own_inputs;
    if (!std::all_of(post_ops, node.inputs.end(), [&](int t) { return IsBatchOrRepeated(t); }))
      return false;
    if (!None(reads, node.inputs.size())) return false;  // scales and zero points
    const std::vector<int> own(node.inputs.begin(), post_ops);
    const Attrs& a = node.attrs;
    switch (node.kind) {
      case Kind::kConvolution:
      case Kind::kDeconvolution:
      case Kind::kPRelu:
      case Kind::kLayerNormalization:
      case Kind::kRmsNormalization:
      case Kind::kCompressedMatmul:
      case Kind::kPooling:
      case Kind::kEltwise:
      case Kind::kLrn:
      case Kind::kReduction:  // the first dim of its result is the batch: it stays
      case Kind::kResampling:
      case Kind::kReorder:
      case Kind::kReshape:
      case Kind::kLookup:
        return IsBatch(own[0]) && None(own, 1);
      case Kind::kBatchNormalization:  // statistics stand between the sources
        return IsBatch(own[0]) && None({own.begin() + 1, own.begin() + 5}) && All(own, 5);
      case Kind::kMatmul:
        if (Shape(own[0]).size() == 2) return IsBatch(own[0]) && None(own, 1);
        return std::all_of(own.begin(), own.end(), [&](int t) { return IsBatchOrRepeated(t); });
      case Kind::kBinary:
        return std::all_of(own.begin(), own.end(), [&](int t) { return IsBatchOrRepeated(t); });
      case Kind::kExpand:
        return IsBatchOrRepeated(own[0]) && Shape(own[0]).size() == Shape(node.output).size();
      case Kind::kSoftmax:
      case Kind::kShuffle:
        return IsBatch(own[0]) && a.axis != 0;
      case Kind::kConcat:
        return a.axis != 0 && All(own);
      case Kind::kPermute:
        return IsBatch(own[0]) && a.axes[0] == 0;
      case Kind::kSlice:
        return IsBatch(own[0]) && a.begin[0] == 0 && a.steps[0] == 1;
      case Kind::kPad:
        return IsBatch(own[0]) && a.pad_begin[0] == 0 && a.pad_end[0] == 0;
      case Kind::kGather:
        return a.axis == 0 ? !IsBatch(own[0]) && IsBatch(own[1])
                           : IsBatch(own[0]) && !IsBatch(own[1]);
      case Kind::kAttention:
        return All({own.begin(), own.begin() + 3}) &&
               std::all_of(own.begin() + 3, own.end(), [&](int t) { return IsBatchOrRepeated(t); });
      default:
        return false;
    }
  }

  const Graph& graph_;
  const int symbol_;
};

/// Per sample; 0 for what all samples share.
int64_t BytesOfSample(const Graph& graph, int batch, const Shapes& shapes, int tensor) {
  if (tensor < 0) return 0;
  const std::vector<Dim>& shape = graph.tensors[tensor].shape;
  if (shape.empty() || shape[0].op != Dim::Op::kSymbol || shape[0].value != batch) return 0;
  const Dims& dims = shapes[tensor];
  return ElementCount(Dims(dims.begin() + 1, dims.end())) * SizeOf(graph.tensors[tensor].dtype);
}

double ExpectedSeconds(const std::vector<PartsPlan::Part>& parts) {
  double all = 0;
  for (const PartsPlan::Part& part : parts) all += part.plan->pace().expected();
  return all;
}

}  // namespace

std::optional<int> FindBatch(const Graph& graph) {
  for (size_t symbol = 0; symbol < graph.symbols.size(); ++symbol) {
    if (Prover(graph, static_cast<int>(symbol)).Holds()) return static_cast<int>(symbol);
  }
  return std::nullopt;
}

bool PaysInParts(const Graph& graph, size_t parts, const PlanSeconds& seconds) {
  double bytes = 0;
  for (const Constant& constant : graph.constants) {
    const Tensor& tensor = graph.tensors[constant.tensor];
    bytes += static_cast<double>(ElementCount(KnownDims(tensor.shape)) * SizeOf(tensor.dtype));
  }
  const auto nodes = static_cast<double>(graph.nodes.size());
  return static_cast<double>(parts - 1) * (seconds.byte * bytes + seconds.start * nodes) <
         seconds.plan * nodes;
}

PartsPlan::PartsPlan(const Graph& graph, int batch, Shapes shapes, std::vector<Part> parts)
    : Plan(std::move(shapes), ExpectedSeconds(parts)), parts_(std::move(parts)) {
  for (const Input& input : graph.inputs)
    input_bytes_.push_back(BytesOfSample(graph, batch, this->shapes(), input.tensor));
  for (int output : graph.outputs)
    output_bytes_.push_back(BytesOfSample(graph, batch, this->shapes(), output));
}

void PartsPlan::Run(const std::vector<void*>& inputs, const std::vector<void*>& outputs) const {
  std::vector<void*> from = inputs, to = outputs;
  for (const Part& part : parts_) {
    part.plan->Run(from, to);
    for (size_t i = 0; i < input_bytes_.size(); ++i) {
      if (input_bytes_[i] > 0)
        from[i] = static_cast<char*>(from[i]) + part.samples * input_bytes_[i];
    }
    for (size_t i = 0; i < output_bytes_.size(); ++i)
      to[i] = static_cast<char*>(to[i]) + part.samples * output_bytes_[i];
  }
}

json::Object PartsPlan::Describe(const Graph& graph) const {
  return parts_.front().plan->Describe(graph);
}

json::Object PartsPlan::Profile(const Graph& graph, const std::vector<void*>& inputs,
                                const std::vector<void*>& outputs) const {
  return parts_.front().plan->Profile(graph, inputs, outputs);
}

bool PartsPlan::UsesConstant(size_t index) const {
  return parts_.front().plan->UsesConstant(index);
}

}  // namespace tvm_byoc_dnnl
