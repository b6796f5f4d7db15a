// SPDX-License-Identifier: Apache-2.0
// Symbolic dims, and from these to static shapes; and inputs that an output is written over: a
// cache that is updated in place.
#include <algorithm>
#include <set>

#include "common/graph.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

// Subexpressions may be negative; a dim may not.
int64_t EvaluateAny(const Dim& dim, const std::vector<int64_t>& symbols) {
  if (dim.op == Dim::Op::kConst) return dim.value;
  if (dim.op == Dim::Op::kSymbol) return symbols.at(dim.value);
  int64_t a = EvaluateAny(dim.args[0], symbols);
  int64_t b = EvaluateAny(dim.args[1], symbols);
  int64_t result = 0;
  bool overflow = false;
  switch (dim.op) {
    case Dim::Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Dim::Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Dim::Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Dim::Op::kFloorDiv:
    case Dim::Op::kMod:
      if (b == 0) Fail(ErrorKind::kInput, "a dim's expression divides ", a, " by zero");
      if (b == -1) {  // INT64_MIN / -1
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        if (dim.op == Dim::Op::kMod) return 0;
      } else {
        result = FloorDiv(a, b);
        if (dim.op == Dim::Op::kMod) result = a - result * b;
      }
      break;
    case Dim::Op::kMax:
      return std::max(a, b);
    case Dim::Op::kMin:
      return std::min(a, b);
    case Dim::Op::kConst:
    case Dim::Op::kSymbol:
      break;  // done above
  }
  if (overflow) Fail(ErrorKind::kInput, "a dim's expression overflows with ", a, " and ", b);
  return result;
}

bool Less(const Dim& a, const Dim& b) {
  if (a.op != b.op) return a.op > b.op;  // numbers stand last
  if (a.value != b.value) return a.value < b.value;
  return std::lexicographical_compare(a.args.begin(), a.args.end(), b.args.begin(), b.args.end(),
                                      Less);
}

void ListOperands(const Dim& dim, Dim::Op op, std::vector<Dim>* operands) {
  if (dim.op != op) return operands->push_back(dim);
  for (const Dim& arg : dim.args) ListOperands(arg, op, operands);
}

}  // namespace

bool Mentions(const Dim& dim, int symbol) {
  if (dim.op == Dim::Op::kSymbol) return dim.value == symbol;
  return std::any_of(dim.args.begin(), dim.args.end(),
                     [&](const Dim& arg) { return Mentions(arg, symbol); });
}

Dim Sorted(Dim dim) {
  if (dim.op != Dim::Op::kAdd && dim.op != Dim::Op::kMul) return dim;
  std::vector<Dim> operands;
  ListOperands(dim, dim.op, &operands);
  std::sort(operands.begin(), operands.end(), Less);
  Dim result = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) result = {dim.op, 0, {result, operands[i]}};
  return result;
}

int64_t Evaluate(const Dim& dim, const std::vector<int64_t>& symbols) {
  int64_t value = EvaluateAny(dim, symbols);
  if (value < 0) Fail(ErrorKind::kInput, "a dim's expression gives ", value, ", expected >= 0");
  return value;
}

Dims Evaluate(const std::vector<Dim>& shape, const std::vector<int64_t>& symbols) {
  Dims result;
  result.reserve(shape.size());
  for (const Dim& dim : shape) result.push_back(Evaluate(dim, symbols));
  return result;
}

Dims KnownDims(const std::vector<Dim>& shape) {
  Dims result;
  result.reserve(shape.size());
  for (const Dim& dim : shape) {
    result.push_back(dim.op == Dim::Op::kConst ? dim.value : kUnknownDim);
  }
  return result;
}

int64_t ElementCount(const Dims& shape) {
  // The product of the dims without the zeros must be in range too: strides are made of it.
  int64_t count = 1;
  bool zero = false;
  bool unknown = false;
  for (int64_t dim : shape) {
    unknown |= dim < 0;
    zero |= dim == 0;
    if (dim <= 0) continue;
    if (count > kMaxBytes / dim) {
      Fail(ErrorKind::kGraph, "a tensor of shape ", Join(shape), " is larger than 2^62 bytes");
    }
    count *= dim;
  }
  return zero ? 0 : unknown ? kUnknownDim : count;
}

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
