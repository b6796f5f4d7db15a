// SPDX-License-Identifier: Apache-2.0
#include "native/program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/graph_reader.h"
#include "common/memory_plan.h"
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
    const std::vector<int64_t> numbers = AsIntegers(Field(object, "numbers", where), where);
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
    if (op != nullptr && (call.op = FindIndexOperator(AsString(*op, where))) == nullptr)
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

namespace {

constexpr size_t kMostOperands = 3;

/// Of 64 bits, as integers of fewer bits are when they are stored: without an overflow.
int64_t Wrapped(uint64_t number) { return static_cast<int64_t>(number); }

constexpr IndexOperator kOperators[] = {
    {"add", 2,
     [](const int64_t* n) {
       return Wrapped(static_cast<uint64_t>(n[0]) + static_cast<uint64_t>(n[1]));
     }},
    {"subtract", 2,
     [](const int64_t* n) {
       return Wrapped(static_cast<uint64_t>(n[0]) - static_cast<uint64_t>(n[1]));
     }},
    {"multiply", 2,
     [](const int64_t* n) {
       return Wrapped(static_cast<uint64_t>(n[0]) * static_cast<uint64_t>(n[1]));
     }},
    {"maximum", 2, [](const int64_t* n) { return std::max(n[0], n[1]); }},
    {"minimum", 2, [](const int64_t* n) { return std::min(n[0], n[1]); }},
    {"less", 2, [](const int64_t* n) { return int64_t{n[0] < n[1]}; }},
    {"less_equal", 2, [](const int64_t* n) { return int64_t{n[0] <= n[1]}; }},
    {"greater", 2, [](const int64_t* n) { return int64_t{n[0] > n[1]}; }},
    {"greater_equal", 2, [](const int64_t* n) { return int64_t{n[0] >= n[1]}; }},
    {"equal", 2, [](const int64_t* n) { return int64_t{n[0] == n[1]}; }},
    {"not_equal", 2, [](const int64_t* n) { return int64_t{n[0] != n[1]}; }},
    {"logical_and", 2, [](const int64_t* n) { return int64_t{n[0] != 0 && n[1] != 0}; }},
    {"logical_or", 2, [](const int64_t* n) { return int64_t{n[0] != 0 || n[1] != 0}; }},
    {"logical_not", 1, [](const int64_t* n) { return int64_t{n[0] == 0}; }},
    {"where", 3, [](const int64_t* n) { return n[0] != 0 ? n[1] : n[2]; }},
    {"astype", 1, [](const int64_t* n) { return n[0]; }},
    {"gather_nd", 2, nullptr},
};

bool IsInteger(DType dtype) {
  return IsByte(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kBool;
}

template <typename T>
int64_t At(const void* data, int64_t i) {
  return static_cast<int64_t>(static_cast<const T*>(data)[i]);
}

int64_t Load(const IndexTensor& from, int64_t i) {
  switch (from.dtype) {
    case DType::kInt64:
      return At<int64_t>(from.data, i);
    case DType::kInt32:
      return At<int32_t>(from.data, i);
    case DType::kInt8:
      return At<int8_t>(from.data, i);
    default:
      return At<uint8_t>(from.data, i);  // a boolean as well
  }
}

template <typename T>
void Put(void* data, int64_t i, int64_t number) {
  static_cast<T*>(data)[i] = static_cast<T>(number);
}

void Store(const IndexTensor& to, int64_t i, int64_t number) {
  switch (to.dtype) {
    case DType::kInt64:
      return Put<int64_t>(to.data, i, number);
    case DType::kInt32:
      return Put<int32_t>(to.data, i, number);
    case DType::kFloat32:
      return Put<float>(to.data, i, number);
    case DType::kBool:
      return Put<uint8_t>(to.data, i, number != 0);
    default:
      return Put<uint8_t>(to.data, i, number);
  }
}

/// In elements, for the axes of a result; 0 along an axis that an operand repeats.
Dims BroadcastStrides(const Dims& operand, const Dims& result) {
  Dims strides = DenseStrides(operand);
  for (size_t i = 0; i < operand.size(); ++i) {
    if (operand[i] == 1) strides[i] = 0;
  }
  strides.insert(strides.begin(), result.size() - operand.size(), 0);
  return strides;
}

void RunEach(const IndexOperator& op, const std::vector<IndexTensor>& operands,
             const IndexTensor& result) {
  const size_t rank = result.shape.size(), count = operands.size();
  std::vector<Dims> strides;
  for (const IndexTensor& operand : operands)
    strides.push_back(BroadcastStrides(operand.shape, result.shape));
  Dims at(rank, 0);
  int64_t places[kMostOperands] = {}, numbers[kMostOperands] = {};
  const int64_t all = ElementCount(result.shape);
  for (int64_t i = 0; i < all; ++i) {
    for (size_t k = 0; k < count; ++k) numbers[k] = Load(operands[k], places[k]);
    Store(result, i, op.apply(numbers));
    for (size_t axis = rank; axis-- > 0;) {
      for (size_t k = 0; k < count; ++k) places[k] += strides[k][axis];
      if (++at[axis] < result.shape[axis]) break;
      for (size_t k = 0; k < count; ++k) places[k] -= strides[k][axis] * at[axis];
      at[axis] = 0;
    }
  }
}

/// The slices of the first operand whose coordinates are the rows of the second.
void GatherSlices(const IndexTensor& data, const IndexTensor& indices, const IndexTensor& result) {
  const int64_t depth = indices.shape.back();
  const int64_t rows = depth == 0 ? 0 : ElementCount(indices.shape) / depth;
  const int64_t bytes =
      ElementCount(Dims(data.shape.begin() + depth, data.shape.end())) * SizeOf(data.dtype);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t slice = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t index = Load(indices, row * depth + k);
      if (index < 0 || index >= data.shape[k])
        throw std::out_of_range(Cat("gather_nd: index ", index, " is out of range, axis ", k,
                                    " has ", data.shape[k], " elements"));
      slice = slice * data.shape[k] + index;
    }
    std::memcpy(static_cast<char*>(result.data) + row * bytes,
                static_cast<const char*>(data.data) + slice * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

const IndexOperator* FindIndexOperator(std::string_view name) {
  const auto found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](const IndexOperator& op) { return name == op.name; });
  return found == std::end(kOperators) ? nullptr : found;
}

bool Takes(const IndexOperator& op, const std::vector<DType>& operands, DType result) {
  if (operands.size() != op.operands) return false;
  if (op.apply == nullptr) return operands[0] == result && IsInteger(operands[1]);
  return std::all_of(operands.begin(), operands.end(), IsInteger) &&
         (IsInteger(result) ||
          (result == DType::kFloat32 && op.name == std::string_view("astype")));
}

bool Fits(const IndexOperator& op, const std::vector<Dims>& operands, const Dims& result) {
  if (op.apply == nullptr) {
    const Dims &data = operands[0], &indices = operands[1];
    if (indices.empty() || indices.back() < 1 || indices.back() > static_cast<int64_t>(data.size()))
      return false;
    Dims expected(indices.begin(), indices.end() - 1);
    expected.insert(expected.end(), data.begin() + indices.back(), data.end());
    return result == expected;
  }
  return std::all_of(operands.begin(), operands.end(), [&](const Dims& operand) {
    return operand.size() <= result.size() &&
           std::equal(operand.rbegin(), operand.rend(), result.rbegin(),
                      [](int64_t own, int64_t wanted) { return own == wanted || own == 1; });
  });
}

void Run(const IndexOperator& op, const std::vector<IndexTensor>& operands, IndexTensor result) {
  if (op.apply == nullptr) return GatherSlices(operands[0], operands[1], result);
  RunEach(op, operands, result);
}

}  // namespace tvm_byoc_dnnl
