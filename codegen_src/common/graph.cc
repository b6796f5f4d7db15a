// SPDX-License-Identifier: Apache-2.0
#include "common/graph.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "common/graph_tables.h"
#include "common/json_fields.h"
#include "common/known_times.h"
#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

bool IsIdentifier(const std::string& name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

class Reader {
 public:
  Graph Read(const json::Value& document) {
    const json::Object& root = AsObject(document, "graph");
    CheckVersion(root);
    AllowOnly(root, "format version name tensors inputs constants nodes outputs times", "graph");
    graph_.name = AsString(Field(root, "name", "graph"), "graph: name");
    if (!IsIdentifier(graph_.name)) {
      Fail(ErrorKind::kGraph, "graph: name \"", graph_.name, "\" is not an identifier");
    }
    ReadTensors(AsArray(Field(root, "tensors", "graph"), "tensors"));
    ReadInputs(AsArray(Field(root, "inputs", "graph"), "inputs"));
    ReadConstants(AsArray(Field(root, "constants", "graph"), "constants"));
    CheckSymbolsBound();
    const json::Array& nodes = AsArray(Field(root, "nodes", "graph"), "nodes");
    for (size_t i = 0; i < nodes.size(); ++i) ReadNode(nodes[i], Cat("node ", i));
    const json::Array& outputs = AsArray(Field(root, "outputs", "graph"), "outputs");
    for (const json::Value& id : outputs) graph_.outputs.push_back(DefinedId(id, "outputs"));
    if (outputs.empty()) Fail(ErrorKind::kGraph, "outputs: empty, expected at least one tensor");
    CheckAllDefined();
    CheckAllNodes();
    CheckAliases(graph_);
    if (const json::Value* times = json::Find(root, "times")) graph_.times = ReadKnownTimes(*times);
    return std::move(graph_);
  }

 private:
  static void CheckVersion(const json::Object& root) {
    const std::string& format = AsString(Field(root, "format", "graph"), "format");
    int64_t version = AsInteger(Field(root, "version", "graph"), "version");
    if (format != kGraphFormat || version < kOldestGraphVersion || version > kGraphVersion) {
      Fail(ErrorKind::kArtifact, "graph format \"", format, "\" version ", version,
           " is not readable, expected \"", kGraphFormat, "\" version ", kOldestGraphVersion,
           " to ", kGraphVersion, ": build the model again with this version of the package");
    }
  }

  // A tensor id in range.
  int Id(const json::Value& value, const std::string& where) const {
    int64_t id = AsInteger(value, where);
    if (id < 0 || id >= static_cast<int64_t>(graph_.tensors.size())) {
      Fail(ErrorKind::kGraph, where, ": tensor id ", id, " is out of range, there are ",
           graph_.tensors.size(), " tensors");
    }
    return static_cast<int>(id);
  }

  // A position in a list that is read later: a number out of range stays out of range.
  static int Position(const json::Value& value, const std::string& where) {
    const int64_t position = AsInteger(value, where);
    return position >= 0 && position < kMany ? static_cast<int>(position) : kMany;
  }

  // An operand or a result: an id, or an object with an id, a scale and a zero point.
  std::pair<const json::Value*, Scaling> ReadScaled(const json::Value& value,
                                                    const std::string& where) const {
    Scaling scaling;
    const json::Object* object = value.As<json::Object>();
    if (object == nullptr) return {&value, scaling};
    AllowOnly(*object, "tensor scale zero_point axis", where);
    if (const json::Value* id = json::Find(*object, "scale")) scaling.scale = DefinedId(*id, where);
    if (const json::Value* id = json::Find(*object, "zero_point")) {
      scaling.zero_point = DefinedId(*id, where);
    }
    if (scaling.IsNone()) Fail(ErrorKind::kGraph, where, ": expected a scale or a zero_point");
    if (const json::Value* axis = json::Find(*object, "axis")) {
      scaling.axis = AsInteger(*axis, where + ": axis");
      if (scaling.axis < 0) Fail(ErrorKind::kGraph, where, ": axis ", scaling.axis, " is negative");
    }
    return {&Field(*object, "tensor", where), scaling};
  }

  int DefinedId(const json::Value& value, const std::string& where) const {
    int id = Id(value, where);
    if (!defined_[id]) {
      Fail(ErrorKind::kGraph, where, ": tensor ", id, " \"", graph_.tensors[id].name,
           "\" is used before it is defined");
    }
    return id;
  }

  void Define(int id, const std::string& where) {
    if (defined_[id]) {
      Fail(ErrorKind::kGraph, where, ": tensor ", id, " \"", graph_.tensors[id].name,
           "\" is defined a second time");
    }
    defined_[id] = true;
  }

  Dim ReadDim(const json::Value& value, const std::string& where) {
    Dim dim;
    if (const int64_t* number = value.As<int64_t>()) {
      dim.value = *number;
      return dim;
    }
    if (const std::string* symbol = value.As<std::string>()) {
      if (!IsIdentifier(*symbol)) {
        Fail(ErrorKind::kGraph, where, ": the symbol \"", *symbol, "\" is not an identifier");
      }
      dim.op = Dim::Op::kSymbol;
      auto inserted = symbol_ids_.emplace(*symbol, graph_.symbols.size());
      if (inserted.second) graph_.symbols.push_back(*symbol);
      dim.value = static_cast<int64_t>(inserted.first->second);
      return dim;
    }
    static constexpr std::pair<const char*, Dim::Op> kOps[] = {
        {"+", Dim::Op::kAdd},       {"-", Dim::Op::kSub}, {"*", Dim::Op::kMul},
        {"//", Dim::Op::kFloorDiv}, {"%", Dim::Op::kMod}, {"max", Dim::Op::kMax},
        {"min", Dim::Op::kMin}};
    const json::Array& parts = As<json::Array>(value, "a number, a symbol or an expression", where);
    if (parts.size() != 3) {
      Fail(ErrorKind::kGraph, where, ": a dim's expression has ", parts.size(),
           " parts, expected [operator, dim, dim]");
    }
    const std::string& name = AsString(parts[0], where);
    auto row = std::find_if(std::begin(kOps), std::end(kOps),
                            [&](const auto& op) { return name == op.first; });
    if (row == std::end(kOps)) {
      Fail(ErrorKind::kGraph, where, ": unknown operator \"", name,
           "\", expected + - * // % max min");
    }
    dim.op = row->second;
    dim.args = {ReadDim(parts[1], where), ReadDim(parts[2], where)};
    return Sorted(std::move(dim));
  }

  std::vector<Dim> ReadShape(const json::Value& value, const std::string& where) {
    std::vector<Dim> shape;
    for (const json::Value& item : AsArray(value, where)) {
      shape.push_back(ReadDim(item, where));
      if (shape.back().op == Dim::Op::kConst && shape.back().value < 0) {
        Fail(ErrorKind::kGraph, where, ": the dim ", shape.back().value, " is negative");
      }
    }
    return shape;
  }

  void ReadTensors(const json::Array& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string where = Cat("tensor ", i);
      const json::Object& object = AsObject(tensors[i], where);
      AllowOnly(object, "name dtype shape", where);
      Tensor tensor;
      tensor.name = AsString(Field(object, "name", where), where);
      const std::string& dtype = AsString(Field(object, "dtype", where), where);
      std::optional<DType> known = FindDType(dtype);
      if (!known) Fail(ErrorKind::kGraph, where, ": unknown dtype \"", dtype, "\"");
      tensor.dtype = *known;
      tensor.shape = ReadShape(Field(object, "shape", where), where);
      CheckSize(KnownDims(tensor.shape), tensor.dtype, where);
      graph_.tensors.push_back(std::move(tensor));
    }
    defined_.assign(graph_.tensors.size(), false);
  }

  static void CheckSize(const Dims& shape, DType dtype, const std::string& where) {
    Dims with_element = shape;
    with_element.push_back(SizeOf(dtype));
    try {
      ElementCount(with_element);
    } catch (const Error& error) {
      Fail(ErrorKind::kGraph, where, ": ", error.what());
    }
  }

  void ReadInputs(const json::Array& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string where = Cat("input ", i);
      const json::Object& object = AsObject(inputs[i], where);
      AllowOnly(object, "tensor alias shape", where);
      const json::Value* alias = json::Find(object, "alias");
      if (object.size() != (alias != nullptr ? 2u : 1u)) {
        Fail(ErrorKind::kGraph, where, ": expected either \"tensor\" or \"shape\"");
      }
      Input input;
      if (const json::Value* id = json::Find(object, "tensor")) {
        input.tensor = Id(*id, where);
        Define(input.tensor, where);
        if (alias != nullptr) input.alias = Position(*alias, where + ": alias");
      } else {
        input.shape = ReadShape(Field(object, "shape", where), where);
      }
      graph_.inputs.push_back(std::move(input));
    }
  }

  void ReadConstants(const json::Array& constants) {
    std::set<std::string> names;
    for (size_t i = 0; i < constants.size(); ++i) {
      const std::string where = Cat("constant ", i);
      const json::Object& object = AsObject(constants[i], where);
      AllowOnly(object, "tensor name", where);
      Constant constant;
      constant.tensor = Id(Field(object, "tensor", where), where);
      constant.name = AsString(Field(object, "name", where), where);
      if (!names.insert(constant.name).second) {
        Fail(ErrorKind::kGraph, where, ": the name \"", constant.name, "\" is taken");
      }
      Define(constant.tensor, where);
      for (int64_t dim : KnownDims(graph_.tensors[constant.tensor].shape)) {
        if (dim == kUnknownDim) {
          Fail(ErrorKind::kGraph, where, " \"", constant.name,
               "\": a constant has no symbolic dims");
        }
      }
      graph_.constants.push_back(std::move(constant));
    }
  }

  void CheckSymbolsBound() const {
    std::vector<bool> bound(graph_.symbols.size(), false);
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      for (const Dim& dim : graph_.InputShape(static_cast<int>(i))) {
        if (dim.op == Dim::Op::kSymbol) bound[dim.value] = true;
      }
    }
    for (size_t i = 0; i < bound.size(); ++i) {
      if (!bound[i]) {
        Fail(ErrorKind::kGraph, "the symbol \"", graph_.symbols[i],
             "\" is not a plain dim of any input, so it can never be bound");
      }
    }
  }

  void ReadAttrs(const json::Object& object, const KindSpec& kind, const std::string& where,
                 Attrs* attrs) {
    std::string allowed = kind.attrs;
    allowed.erase(std::remove(allowed.begin(), allowed.end(), '?'), allowed.end());
    AllowOnly(object, allowed.c_str(), where);
    for (std::string name : Words(kind.attrs)) {
      if (name.back() == '?') {
        name.pop_back();
        if (json::Find(object, name) == nullptr) continue;
      }
      const json::Value& value = Field(object, name.c_str(), where);
      const std::string place = where + ": " + name;
      if (name == "alg") {
        attrs->alg = ReadAlg(value, kind.algs, place);
        continue;
      }
      const AttrField& field = FieldOf(name);
      if (field.dims != nullptr) {
        attrs->*field.dims = AsIntegers(value, place);
      } else if (field.integer != nullptr) {
        attrs->*field.integer = AsInteger(value, place);
      } else if (field.numbers != nullptr) {
        attrs->*field.numbers = AsNumbers(value, place);
      } else if (field.words != nullptr) {
        attrs->*field.words = AsStrings(value, place);
      } else {
        attrs->*field.number = AsNumber(value, place);
      }
    }
  }

  static std::string ReadAlg(const json::Value& value, const char* allowed,
                             const std::string& where) {
    const std::string& alg = AsString(value, where);
    if (!HasWord(allowed, alg)) {
      Fail(ErrorKind::kGraph, where, ": unknown alg \"", alg, "\", expected one of ", allowed);
    }
    return alg;
  }

  static PostOp ReadPostOp(const json::Value& value, const std::string& where) {
    const json::Object& object = AsObject(value, where);
    const std::string& kind = AsString(Field(object, "kind", where), where);
    PostOp op;
    if (kind == "eltwise") {
      AllowOnly(object, "kind alg alpha beta", where);
      op.alg = ReadAlg(Field(object, "alg", where), kEltwiseAlgs, where);
      op.alpha = AsNumber(Field(object, "alpha", where), where + ": alpha");
      op.beta = AsNumber(Field(object, "beta", where), where + ": beta");
    } else if (kind == "binary") {
      AllowOnly(object, "kind alg input", where);
      op.binary = true;
      op.alg = ReadAlg(Field(object, "alg", where), kBinaryAlgs, where);
      op.input = Position(Field(object, "input", where), where);
    } else {
      Fail(ErrorKind::kGraph, where, ": unknown kind \"", kind, "\", expected eltwise or binary");
    }
    return op;
  }

  void ReadNode(const json::Value& value, const std::string& where) {
    const json::Object& object = AsObject(value, where);
    AllowOnly(object, "kind inputs outputs attrs post_ops source calls", where);
    const std::string& name = AsString(Field(object, "kind", where), where);
    std::optional<Kind> kind = FindKind(name);
    if (!kind) Fail(ErrorKind::kGraph, where, ": unknown kind \"", name, "\"");
    const KindSpec& row = SpecOf(*kind);
    Node node;
    node.kind = *kind;
    const std::string place = where + " (" + name + ")";
    for (const json::Value& operand : AsArray(Field(object, "inputs", place), place)) {
      const auto [id, scaling] = ReadScaled(operand, place);
      node.inputs.push_back(DefinedId(*id, place));
      node.scalings.push_back(scaling);
    }
    const json::Array& outputs = AsArray(Field(object, "outputs", place), place);
    if (outputs.size() != 1) {
      Fail(ErrorKind::kGraph, place, ": got ", outputs.size(), " outputs, expected 1");
    }
    const auto [id, scaling] = ReadScaled(outputs[0], place);
    node.output = Id(*id, place);
    node.output_scaling = scaling;
    Define(node.output, place);
    static const json::Value kNoAttrs{json::Object()};
    const json::Value* attrs = json::Find(object, "attrs");
    ReadAttrs(AsObject(attrs != nullptr ? *attrs : kNoAttrs, place), row, place, &node.attrs);
    if (const json::Value* post_ops = json::Find(object, "post_ops")) {
      for (const json::Value& op : AsArray(*post_ops, place)) {
        node.post_ops.push_back(ReadPostOp(op, Cat(place, ": post-op ", node.post_ops.size())));
      }
    }
    if (const json::Value* source = json::Find(object, "source")) {
      for (const json::Value& op : AsArray(*source, place)) {
        node.source.push_back(AsString(op, place));
      }
    }
    if (const json::Value* calls = json::Find(object, "calls")) {
      for (const json::Value& call : AsArray(*calls, place)) {
        node.calls.push_back(Position(call, place));
      }
    }
    SplitInputs(row, place, &node);
    graph_.nodes.push_back(std::move(node));
  }

  // The operands of binary post-ops stand after the kind's own inputs.
  static void SplitInputs(const KindSpec& kind, const std::string& where, Node* node) {
    int total = static_cast<int>(node->inputs.size());
    int own = total;
    std::vector<bool> used(total, false);
    for (const PostOp& op : node->post_ops) {
      if (!op.binary) continue;
      if (op.input >= total) {
        Fail(ErrorKind::kGraph, where, ": a post-op reads input ", op.input, " of ", total);
      }
      own = std::min(own, op.input);
      used[op.input] = true;
    }
    if (own < kind.min_inputs || own > kind.max_inputs ||
        std::find(used.begin() + own, used.end(), false) != used.end()) {
      Fail(ErrorKind::kGraph, where, ": got ", own, " inputs of its own and ", total - own,
           " for post-ops, expected ", kind.min_inputs,
           kind.max_inputs == kMany            ? " or more"
           : kind.max_inputs > kind.min_inputs ? Cat(" to ", kind.max_inputs)
                                               : std::string(),
           " followed by the operands of binary post-ops");
    }
    node->own_inputs = own;
  }

  void CheckAllDefined() const {
    for (size_t id = 0; id < defined_.size(); ++id) {
      if (!defined_[id]) {
        Fail(ErrorKind::kGraph, "tensor ", id, " \"", graph_.tensors[id].name,
             "\" is never defined: not an input, a constant or an output of a node");
      }
    }
  }

  void CheckAllNodes() const {
    Shapes shapes;
    for (const Tensor& tensor : graph_.tensors) shapes.push_back(KnownDims(tensor.shape));
    for (const Node& node : graph_.nodes) CheckNode(graph_, node, shapes);
  }

  Graph graph_;
  std::vector<bool> defined_;
  std::unordered_map<std::string, size_t> symbol_ids_;
};

}  // namespace

std::vector<int> Node::Reads() const {
  std::vector<int> reads = inputs;
  auto add = [&](const Scaling& scaling) {
    for (int tensor : {scaling.scale, scaling.zero_point}) {
      if (tensor >= 0) reads.push_back(tensor);
    }
  };
  for (const Scaling& scaling : scalings) add(scaling);
  add(output_scaling);
  return reads;
}

Graph ParseGraph(std::string_view json) { return Reader().Read(json::Parse(json)); }

std::string DescribeNode(const Graph& graph, const Node& node, const Shapes& shapes) {
  const Tensor& output = graph.tensors[node.output];
  std::string text = Cat(Name(node.kind), " \"", output.name, "\" (");
  const char* separator = "";
  for (int input : node.inputs) {
    text += Cat(separator, Name(graph.tensors[input].dtype), Join(shapes[input]));
    separator = ", ";
  }
  return text + Cat(" -> ", Name(output.dtype), Join(shapes[node.output]), ")");
}

}  // namespace tvm_byoc_dnnl
