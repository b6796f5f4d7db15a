// SPDX-License-Identifier: Apache-2.0
#include "common/graph_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/graph.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

bool IsIdentifier(const std::string& name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

void CheckSize(const Dims& shape, DType dtype, const std::string& where) {
  Dims with_element = shape;
  with_element.push_back(SizeOf(dtype));
  try {
    ElementCount(with_element);
  } catch (const Error& error) {
    Fail(ErrorKind::kGraph, where, ": ", error.what());
  }
}

}  // namespace

void GraphReader::ReadName(const json::Object& root) {
  graph_.name = AsString(Field(root, "name", "graph"), "graph: name");
  if (!IsIdentifier(graph_.name)) {
    Fail(ErrorKind::kGraph, "graph: name \"", graph_.name, "\" is not an identifier");
  }
}

void GraphReader::ReadOutputs(const json::Array& outputs) {
  for (const json::Value& id : outputs) graph_.outputs.push_back(DefinedId(id, "outputs"));
  if (outputs.empty()) Fail(ErrorKind::kGraph, "outputs: empty, expected at least one tensor");
}

int GraphReader::Id(const json::Value& value, const std::string& where) const {
  int64_t id = AsInteger(value, where);
  if (id < 0 || id >= static_cast<int64_t>(graph_.tensors.size())) {
    Fail(ErrorKind::kGraph, where, ": tensor id ", id, " is out of range, there are ",
         graph_.tensors.size(), " tensors");
  }
  return static_cast<int>(id);
}

int GraphReader::Position(const json::Value& value, const std::string& where) {
  const int64_t position = AsInteger(value, where);
  return position >= 0 && position < kMany ? static_cast<int>(position) : kMany;
}

int GraphReader::DefinedId(const json::Value& value, const std::string& where) const {
  int id = Id(value, where);
  if (!defined_[id]) {
    Fail(ErrorKind::kGraph, where, ": tensor ", id, " \"", graph_.tensors[id].name,
         "\" is used before it is defined");
  }
  return id;
}

void GraphReader::Define(int id, const std::string& where) {
  if (defined_[id]) {
    Fail(ErrorKind::kGraph, where, ": tensor ", id, " \"", graph_.tensors[id].name,
         "\" is defined a second time");
  }
  defined_[id] = true;
}

Dim GraphReader::ReadDim(const json::Value& value, const std::string& where) {
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

std::vector<Dim> GraphReader::ReadShape(const json::Value& value, const std::string& where) {
  std::vector<Dim> shape;
  for (const json::Value& item : AsArray(value, where)) {
    shape.push_back(ReadDim(item, where));
    if (shape.back().op == Dim::Op::kConst && shape.back().value < 0) {
      Fail(ErrorKind::kGraph, where, ": the dim ", shape.back().value, " is negative");
    }
  }
  return shape;
}

void GraphReader::ReadTensors(const json::Array& tensors) {
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

void GraphReader::ReadInputs(const json::Array& inputs) {
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

void GraphReader::CheckSymbolsBound() const {
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

void GraphReader::CheckAllDefined() const {
  for (size_t id = 0; id < defined_.size(); ++id) {
    if (!defined_[id]) {
      Fail(ErrorKind::kGraph, "tensor ", id, " \"", graph_.tensors[id].name,
           "\" is never defined: not an input, a constant or an output of a node");
    }
  }
}

}  // namespace tvm_byoc_dnnl
