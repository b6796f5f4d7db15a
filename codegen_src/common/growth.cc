// SPDX-License-Identifier: Apache-2.0
#include "common/growth.h"

#include <algorithm>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr int kKey = 1, kValue = 2, kBias = 3;  // inputs of attention
constexpr int64_t kLeastCapacity = 64;

bool Mentions(const std::vector<Dim>& shape, int symbol) {
  return std::any_of(shape.begin(), shape.end(),
                     [&](const Dim& dim) { return Mentions(dim, symbol); });
}

bool IsUnscaled(const Node& node) {
  return node.output_scaling.IsNone() &&
         std::all_of(node.scalings.begin(), node.scalings.end(),
                     [](const Scaling& scaling) { return scaling.IsNone(); });
}

bool IsPlain(const Node& node) { return node.post_ops.empty() && IsUnscaled(node); }

/// Finds the caches of one graph.
class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {}

  std::optional<Growth> Find() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) AddCache(static_cast<int>(i));
    if (found_.caches.empty()) return std::nullopt;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!IsAllowed(node)) return std::nullopt;
      if (node.kind == Kind::kAttention && Grows(node.inputs[kKey]))
        found_.nodes.push_back(static_cast<int>(i));
    }
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const int tensor = graph_.inputs[i].tensor;
      if (tensor < 0 || !Grows(tensor) || IsPast(tensor)) continue;
      if (!IsMask(tensor) || graph_.inputs[i].alias >= 0) return std::nullopt;
      found_.masks.push_back(static_cast<int>(i));
    }
    for (int tensor : graph_.outputs) {
      if (Grows(tensor) && !IsCache(tensor)) return std::nullopt;
    }
    return std::move(found_);
  }

 private:
  const std::vector<Dim>& Shape(int tensor) const { return graph_.tensors[tensor].shape; }

  /// A concat of an input and new rows whose result is an output, if it has the length of the
  /// others.
  void AddCache(int index) {
    const Node& node = graph_.nodes[index];
    if (node.kind != Kind::kConcat || node.inputs.size() != 2 || !IsPlain(node)) return;
    const auto& outputs = graph_.outputs;
    const auto& inputs = graph_.inputs;
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const Input& candidate) {
      return candidate.tensor == node.inputs[0];
    });
    const auto output = std::find(outputs.begin(), outputs.end(), node.output);
    if (input == inputs.end() || input->alias >= 0 || output == outputs.end()) return;
    if (std::count(outputs.begin(), outputs.end(), node.output) != 1) return;
    const int64_t axis = node.attrs.axis;
    const Dim& past = Shape(node.inputs[0])[axis];
    const Dim& length = Shape(node.output)[axis];
    if (past.op != Dim::Op::kSymbol) return;
    const auto symbol = static_cast<int>(past.value);
    if (found_.caches.empty()) {
      found_.symbol = symbol;
      found_.length = length;
      found_.added = Shape(node.inputs[1])[axis];
    } else if (symbol != found_.symbol || !(length == found_.length)) {
      return;
    }
    for (int64_t other = 0; other < static_cast<int64_t>(Shape(node.output).size()); ++other) {
      if (other != axis && Mentions(Shape(node.output)[other], symbol)) return;
    }
    found_.caches.push_back({static_cast<int>(input - inputs.begin()),
                             static_cast<int>(output - outputs.begin()), axis});
    found_.nodes.push_back(index);
    joins_.push_back(&node);
  }

  bool IsCache(int tensor) const {
    return std::any_of(joins_.begin(), joins_.end(),
                       [&](const Node* join) { return join->output == tensor; });
  }

  /// A view of a cache with its axes in another order.
  bool IsTurnedCache(const Node& node) const {
    return node.kind == Kind::kPermute && IsPlain(node) && IsCache(node.inputs[0]) &&
           node.attrs.axes.back() == static_cast<int64_t>(node.attrs.axes.size()) - 1;
  }

  bool IsTurnedCache(int tensor) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return node.output == tensor && IsTurnedCache(node);
    });
  }

  bool Grows(int tensor) const { return Mentions(Shape(tensor), found_.symbol); }

  bool IsPast(int tensor) const {
    return std::any_of(joins_.begin(), joins_.end(),
                       [&](const Node* join) { return join->inputs[0] == tensor; });
  }

  /// The length is the last dim, and no other one depends on it.
  bool IsMask(int tensor) const {
    const std::vector<Dim>& shape = Shape(tensor);
    return !IsPast(tensor) && shape.back() == found_.length &&
           !Mentions(std::vector<Dim>(shape.begin(), shape.end() - 1), found_.symbol);
  }

  /// A node that computes each element of a mask from those at the same place of the last axis.
  static bool KeepsLastAxis(const Node& node) {
    switch (node.kind) {
      case Kind::kBinary:
      case Kind::kEltwise:
      case Kind::kExpand:
      case Kind::kReorder:
      case Kind::kReshape:
        return IsUnscaled(node);
      case Kind::kPermute:
        return node.attrs.axes.back() == static_cast<int64_t>(node.attrs.axes.size()) - 1;
      default:
        return false;
    }
  }

  /// Whether the node computes the same for these rows when there is room for more behind them.
  bool IsAllowed(const Node& node) const {
    const std::vector<int> reads = node.Reads();
    const bool is_join = std::find(joins_.begin(), joins_.end(), &node) != joins_.end();
    auto may_read = [&](int tensor) {
      if (!Grows(tensor)) return true;
      if (is_join) return tensor == node.inputs[0] && node.inputs[1] != tensor;
      if (node.kind != Kind::kAttention) return IsMask(tensor) && KeepsLastAxis(node);
      const std::vector<Dim>& shape = Shape(tensor);
      if (tensor == node.inputs[kKey] || tensor == node.inputs[kValue]) {
        return (IsCache(tensor) || IsTurnedCache(tensor)) && tensor != node.inputs[0] &&
               shape[shape.size() - 2] == found_.length;
      }
      return IsPlain(node) && node.inputs.size() > kBias && tensor == node.inputs[kBias] &&
             IsMask(tensor);
    };
    if (IsTurnedCache(node)) return true;
    if (!std::all_of(reads.begin(), reads.end(), may_read)) return false;
    if (node.kind == Kind::kAttention && Grows(node.inputs[kKey]))
      return IsPlain(node) && Grows(node.inputs[kValue]);
    return is_join || !Grows(node.output) || (IsMask(node.output) && KeepsLastAxis(node));
  }

  const Graph& graph_;
  Growth found_;
  std::vector<const Node*> joins_;
};

}  // namespace

std::optional<Growth> FindGrowth(const Graph& graph) { return Finder(graph).Find(); }

int64_t CacheCapacity(int64_t rows) {
  int64_t capacity = kLeastCapacity;
  while (capacity < rows) capacity *= 2;
  return capacity;
}

std::vector<int64_t> AtCapacity(const Growth& growth, std::vector<int64_t> symbols,
                                int64_t capacity) {
  symbols[growth.symbol] = capacity - Evaluate(growth.added, symbols);
  return symbols;
}

}  // namespace tvm_byoc_dnnl
