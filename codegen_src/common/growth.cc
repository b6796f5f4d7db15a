// SPDX-License-Identifier: Apache-2.0
#include "common/growth.h"

#include <algorithm>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr int kKey = 1, kValue = 2, kBias = 3;  // inputs of attention
constexpr int64_t kLeastCapacity = 64;

bool Mentions(const std::vector<Dim>& shape, const std::vector<int>& symbols) {
  return std::any_of(shape.begin(), shape.end(), [&](const Dim& dim) {
    return std::any_of(symbols.begin(), symbols.end(),
                       [&](int symbol) { return Mentions(dim, symbol); });
  });
}

Dim NumberOf(int64_t value) {
  Dim dim;
  dim.value = value;
  return dim;
}

bool IsPlain(const Node& node) { return node.post_ops.empty() && !node.IsScaled(); }

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

  /// The position among the inputs of the graph, or -1.
  int InputOf(int tensor) const {
    const auto found =
        std::find_if(graph_.inputs.begin(), graph_.inputs.end(),
                     [&](const Input& candidate) { return candidate.tensor == tensor; });
    if (found == graph_.inputs.end() || found->alias >= 0) return -1;
    return static_cast<int>(found - graph_.inputs.begin());
  }

  /// How the length depends on the number of rows so far, a symbol: it is that number and the new
  /// ones, or that number, or the larger one of it and another symbol.
  bool SetLength(const Dim& past, const Dim& rows, const Dim& length) {
    Dim sum;
    sum.op = Dim::Op::kAdd;
    sum.args = {past, rows};
    const auto symbol = static_cast<int>(past.value);
    found_.length = length;
    found_.symbols = {symbol};
    found_.added = NumberOf(0);
    if (Sorted(length) == Sorted(sum)) {
      found_.added = rows;
    } else if (length.op == Dim::Op::kMax) {
      if (length.args[0].op != Dim::Op::kSymbol || length.args[1].op != Dim::Op::kSymbol)
        return false;
      const bool is_first = length.args[0] == past;
      if (!is_first && !(length.args[1] == past)) return false;
      found_.symbols.push_back(static_cast<int>(length.args[is_first ? 1 : 0].value));
    } else if (!(length == past)) {
      return false;
    }
    return true;
  }

  /// A concat of an input and new rows, or such rows put into an input, whose result is an output,
  /// if it has the length of the others.
  void AddCache(int index) {
    const Node& node = graph_.nodes[index];
    const bool appends = node.kind == Kind::kAppend;
    const bool joins = node.kind == Kind::kConcat && node.inputs.size() == 2;
    if ((!appends && !joins) || !IsPlain(node)) return;
    const auto& outputs = graph_.outputs;
    const auto output = std::find(outputs.begin(), outputs.end(), node.output);
    const int input = InputOf(node.inputs[0]);
    if (input < 0 || output == outputs.end()) return;
    if (std::count(outputs.begin(), outputs.end(), node.output) != 1) return;
    Growth::Cache cache{input, static_cast<int>(output - outputs.begin()),
                        appends ? 2 : node.attrs.axis};
    if (appends) {
      cache.starts = InputOf(node.inputs[2]);
      cache.ends = InputOf(node.inputs[3]);
      if (cache.starts < 0 || cache.ends < 0) return;
    }
    const Dim& past = Shape(node.inputs[0])[cache.axis];
    const Dim& length = Shape(node.output)[cache.axis];
    if (past.op != Dim::Op::kSymbol) return;
    if (found_.caches.empty()) {
      if (!SetLength(past, Shape(node.inputs[1])[cache.axis], length)) return;
    } else if (past.value != found_.symbols[0] || !(length == found_.length)) {
      return;
    }
    for (int64_t other = 0; other < static_cast<int64_t>(Shape(node.output).size()); ++other) {
      if (other != cache.axis && Mentions({Shape(node.output)[other]}, found_.symbols)) return;
    }
    found_.caches.push_back(cache);
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

  bool Grows(int tensor) const { return Mentions(Shape(tensor), found_.symbols); }

  bool IsPast(int tensor) const {
    return std::any_of(joins_.begin(), joins_.end(),
                       [&](const Node* join) { return join->inputs[0] == tensor; });
  }

  /// The length is the last dim, and no other one depends on it.
  bool IsMask(int tensor) const {
    const std::vector<Dim>& shape = Shape(tensor);
    return !IsPast(tensor) && shape.back() == found_.length &&
           !Mentions(std::vector<Dim>(shape.begin(), shape.end() - 1), found_.symbols);
  }

  /// A node that computes each element of a mask from those at the same place of the last axis.
  static bool KeepsLastAxis(const Node& node) {
    switch (node.kind) {
      case Kind::kBinary:
      case Kind::kEltwise:
      case Kind::kExpand:
      case Kind::kReorder:
      case Kind::kReshape:
        return !node.IsScaled();
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
      if (node.kind == Kind::kCachedAttention) {
        return tensor != node.inputs[0] && IsCache(tensor) && IsPlain(node) &&
               (tensor == node.inputs[kKey] || tensor == node.inputs[kValue]);
      }
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
  const int64_t added = Evaluate(growth.added, symbols);
  for (int symbol : growth.symbols) symbols[symbol] = capacity - added;
  return symbols;
}

}  // namespace tvm_byoc_dnnl
