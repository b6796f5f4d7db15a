// SPDX-License-Identifier: Apache-2.0
#include "native/program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/graph_reader.h"
#include "common/support/error.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

class Reader : private GraphReader {
 public:
  Program Read(const json::Value& document) {
    const json::Object& root = AsObject(document, "program");
    const std::string& format = AsString(Field(root, "format", "program"), "format");
    const int64_t version = AsInteger(Field(root, "version", "program"), "version");
    if (format != kProgramFormat || version != kProgramVersion) {
      Fail(ErrorKind::kArtifact, "program format \"", format, "\" version ", version,
           " is not readable, expected \"", kProgramFormat, "\" version ", kProgramVersion,
           ": build the model again with this version of the package");
    }
    if (const json::Value* reason = json::Find(root, "reason")) {
      Fail(ErrorKind::kUnsupported, "it cannot run without TVM: ", AsString(*reason, "reason"));
    }
    AllowOnly(root, "format version name tensors inputs constants calls outputs signature",
              "program");
    ReadName(root);
    ReadTensors(AsArray(Field(root, "tensors", "program"), "tensors"));
    ReadInputs(AsArray(Field(root, "inputs", "program"), "inputs"));
    CheckSymbolsBound();
    for (const json::Value& item : AsArray(Field(root, "constants", "program"), "constants"))
      ReadConstant(item, Cat("constant ", program_.constants.size()));
    const json::Array& calls = AsArray(Field(root, "calls", "program"), "calls");
    for (size_t i = 0; i < calls.size(); ++i) ReadCall(calls[i], Cat("call ", i));
    ReadOutputs(AsArray(Field(root, "outputs", "program"), "outputs"));
    CheckAllDefined();
    for (const Input& input : graph_.inputs) {
      if (input.tensor < 0 || input.alias >= 0)
        Fail(ErrorKind::kGraph, "program: expected inputs that are tensors without an alias");
    }
    program_.signature = AsObject(Field(root, "signature", "program"), "signature");
    program_.graph = std::move(graph_);
    return std::move(program_);
  }

 private:
  void ReadConstant(const json::Value& value, const std::string& where) {
    const json::Object& object = AsObject(value, where);
    AllowOnly(object, "tensor numbers", where);
    const int id = Id(Field(object, "tensor", where), where);
    Define(id, where);
    const Tensor& tensor = graph_.tensors[id];
    const Dims shape = KnownDims(tensor.shape);
    const auto numbers = As<Dims>(Field(object, "numbers", where), where);
    if (std::count(shape.begin(), shape.end(), kUnknownDim) > 0 ||
        ElementCount(shape) != static_cast<int64_t>(numbers.size())) {
      Fail(ErrorKind::kGraph, where, ": got ", numbers.size(), " integers for ", Name(tensor.dtype),
           Join(shape));
    }
    const auto width = static_cast<size_t>(SizeOf(tensor.dtype));
    std::string bytes(numbers.size() * width, '\0');
    for (size_t i = 0; i < numbers.size(); ++i)
      std::memcpy(&bytes[i * width], &numbers[i], width);  // the lowest bytes come first
    graph_.constants.push_back({id, tensor.name});
    program_.constants.push_back(std::move(bytes));
  }

  void ReadCall(const json::Value& value, const std::string& where) {
    const json::Object& object = AsObject(value, where);
    RegionCall call;
    const json::Value* op = json::Find(object, "operator");
    AllowOnly(object, op != nullptr ? "operator inputs outputs" : "region inputs outputs", where);
    if (const json::Value* region = json::Find(object, "region"))
      call.region = AsString(*region, where);
    if (op != nullptr && (call.op = FindHostOperator(AsString(*op, where))) == nullptr)
      Fail(ErrorKind::kGraph, where, ": unknown operator \"", AsString(*op, where), "\"");
    const size_t symbols = graph_.symbols.size();
    for (const json::Value& item : AsArray(Field(object, "inputs", where), where)) {
      Input input;
      if (const json::Object* shape = item.As<json::Object>()) {
        AllowOnly(*shape, "shape", where);
        input.shape = ReadShape(Field(*shape, "shape", where), where);
      } else {
        input.tensor = DefinedId(item, where);
      }
      call.inputs.push_back(std::move(input));
    }
    if (graph_.symbols.size() != symbols)
      Fail(ErrorKind::kGraph, where, ": a shape has a symbol that no input has");
    for (const json::Value& item : AsArray(Field(object, "outputs", where), where)) {
      call.outputs.push_back(Id(item, where));
      Define(call.outputs.back(), where);
    }
    if (call.op != nullptr) {
      CheckOperator(call, where);
    } else if (call.region.empty()) {
      CheckView(call, where);
    }
    program_.calls.push_back(std::move(call));
  }

  void CheckOperator(const RegionCall& call, const std::string& where) const {
    std::vector<DType> dtypes;
    for (const Input& input : call.inputs) {
      if (input.tensor < 0) Fail(ErrorKind::kGraph, where, ": an operator reads tensors alone");
      dtypes.push_back(graph_.tensors[input.tensor].dtype);
    }
    if (call.outputs.size() != 1 ||
        !Takes(*call.op, dtypes, graph_.tensors[call.outputs[0]].dtype)) {
      Fail(ErrorKind::kGraph, where, ": ", call.op->name, " of other tensors than it takes");
    }
  }

  void CheckView(const RegionCall& call, const std::string& where) const {
    const bool is_view =
        call.inputs.size() == 1 && call.outputs.size() == 1 && call.inputs[0].tensor >= 0 &&
        graph_.tensors[call.inputs[0].tensor].dtype == graph_.tensors[call.outputs[0]].dtype;
    if (!is_view) Fail(ErrorKind::kGraph, where, ": expected one tensor in another shape");
  }

  Program program_;
};

}  // namespace

Program ParseProgram(std::string_view json) { return Reader().Read(json::Parse(json)); }

}  // namespace tvm_byoc_dnnl
