// SPDX-License-Identifier: Apache-2.0
// From symbolic dims to static shapes; and inputs that an output is written over: a cache that is
// updated in place.
#include <algorithm>
#include <set>

#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {

/// " with N = 1, M = 2"
static std::string ValuesOf(const Graph& graph, const std::vector<int64_t>& symbols) {
  std::string values;
  for (size_t s = 0; s < symbols.size(); ++s)
    values += Cat(s == 0 ? " with " : ", ", graph.symbols[s], " = ", symbols[s]);
  return values;
}

std::vector<int64_t> BindSymbols(const Graph& graph, const std::vector<Dims>& arguments) {
  std::vector<int64_t> symbols(graph.symbols.size(), kUnknownDim);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const std::vector<Dim>& shape = graph.InputShape(static_cast<int>(i));
    if (arguments[i].size() != shape.size()) {
      Fail(ErrorKind::kInput, graph.name, ": argument ", i, " has rank ", arguments[i].size(),
           ", expected ", shape.size());
    }
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis].op != Dim::Op::kSymbol) continue;
      int64_t& bound = symbols[shape[axis].value];
      if (bound == kUnknownDim) bound = arguments[i][axis];
    }
  }
  for (size_t i = 0; i < graph.inputs.size(); ++i) {  // expressions and repeated symbols must agree
    Dims expected = Evaluate(graph.InputShape(static_cast<int>(i)), symbols);
    if (arguments[i] != expected) {
      Fail(ErrorKind::kInput, graph.name, ": argument ", i, " has shape ", Join(arguments[i]),
           ", expected ", Join(expected), ValuesOf(graph, symbols));
    }
  }
  return symbols;
}

Shapes Specialise(const Graph& graph, const std::vector<int64_t>& symbols) {
  if (symbols.size() != graph.symbols.size()) {
    Fail(ErrorKind::kUnsupported, graph.name, ": shapes depend on ", Join(graph.symbols),
         ", expected values for them, or static shapes");
  }
  Shapes shapes;
  shapes.reserve(graph.tensors.size());
  try {
    for (const Tensor& tensor : graph.tensors) {
      shapes.push_back(Evaluate(tensor.shape, symbols));
      Dims with_element = shapes.back();
      with_element.push_back(SizeOf(tensor.dtype));
      ElementCount(with_element);
    }
    for (const Node& node : graph.nodes) CheckNode(graph, node, shapes);
  } catch (const Error& error) {
    // The graph passed its checks with the symbols unknown: it is their values that do not fit.
    Fail(ErrorKind::kInput, graph.name, ValuesOf(graph, symbols), ": ", error.what());
  }
  return shapes;
}

namespace {

/// Kinds whose result may lie in the memory of their input.
bool IsView(Kind kind) {
  return kind == Kind::kReshape || kind == Kind::kPermute || kind == Kind::kSlice ||
         kind == Kind::kExpand;
}

/// Tensors that lie in the memory of `tensor`.
std::vector<bool> ViewsOf(const Graph& graph, int tensor) {
  std::vector<bool> views(graph.tensors.size(), false);
  views[tensor] = true;
  for (const Node& node : graph.nodes) {
    views[node.output] = IsView(node.kind) && views[node.inputs[0]];
  }
  return views;
}

void CheckAlias(const Graph& graph, size_t index) {
  const Input& input = graph.inputs[index];
  const std::string where = Cat("input ", index, " \"", graph.tensors[input.tensor].name, "\"");
  if (input.alias >= static_cast<int>(graph.outputs.size())) {
    Fail(ErrorKind::kGraph, where, ": is the alias of an output that is out of range, there are ",
         graph.outputs.size(), " outputs");
  }
  const int result = graph.outputs[input.alias];
  const Tensor& from = graph.tensors[input.tensor];
  const Tensor& to = graph.tensors[result];
  if (from.dtype != to.dtype || from.shape != to.shape) {
    Fail(ErrorKind::kGraph, where, ": is the alias of output ", input.alias, ", which is ",
         Name(to.dtype), Join(KnownDims(to.shape)), ", expected ", Name(from.dtype),
         Join(KnownDims(from.shape)));
  }
  if (result == input.tensor) return;  // nothing is written
  const std::vector<bool> views = ViewsOf(graph, input.tensor);
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (views[graph.outputs[i]]) {
      Fail(ErrorKind::kGraph, where, ": output ", i, " reads it after output ", input.alias,
           " has been written over it");
    }
  }
  bool written = false;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::vector<int> reads = graph.nodes[i].Reads();
    if (written && std::any_of(reads.begin(), reads.end(), [&](int t) { return views[t]; })) {
      Fail(ErrorKind::kGraph, where, ": node ", i, " (", Name(graph.nodes[i].kind),
           ") reads it after output ", input.alias, " has been written over it");
    }
    written |= graph.nodes[i].output == result;
  }
  if (!written) {
    Fail(ErrorKind::kGraph, where, ": output ", input.alias,
         " is another input or a constant, expected the input itself or the result of a node");
  }
}

}  // namespace

void CheckAliases(const Graph& graph) {
  std::set<int> taken;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (graph.inputs[i].alias < 0) continue;
    CheckAlias(graph, i);
    if (!taken.insert(graph.inputs[i].alias).second) {
      Fail(ErrorKind::kGraph, "input ", i, ": output ", graph.inputs[i].alias,
           " is written over another input already");
    }
  }
}

void CheckConstants(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> expected;
  for (const Constant& constant : graph.constants) expected.push_back(constant.name);
  if (names == expected) return;
  Fail(ErrorKind::kGraph, graph.name, ": the constants are named ", Join(names), ", in the graph ",
       Join(expected));
}

}  // namespace tvm_byoc_dnnl
