// SPDX-License-Identifier: Apache-2.0
// From symbolic dims to static shapes.
#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {

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
      std::string values;
      for (size_t s = 0; s < symbols.size(); ++s) {
        values += Cat(s == 0 ? " with " : ", ", graph.symbols[s], " = ", symbols[s]);
      }
      Fail(ErrorKind::kInput, graph.name, ": argument ", i, " has shape ", Join(arguments[i]),
           ", expected ", Join(expected), values);
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
  std::string values;
  for (size_t s = 0; s < symbols.size(); ++s) {
    values += Cat(s == 0 ? " with " : ", ", graph.symbols[s], " = ", symbols[s]);
  }
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
    Fail(ErrorKind::kInput, graph.name, values, ": ", error.what());
  }
  return shapes;
}

}  // namespace tvm_byoc_dnnl
