// SPDX-License-Identifier: Apache-2.0
#include "common/graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/graph_reader.h"
#include "common/support/error.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

// DLPack's codes.
constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6;

struct DTypeRow {
  const char* name;
  int64_t size;
  int dlpack_code;
};
constexpr DTypeRow kDTypes[] = {
    {"float32", 4, kFloat}, {"float16", 2, kFloat}, {"bfloat16", 2, kBfloat},
    {"int32", 4, kInt},     {"int8", 1, kInt},      {"uint8", 1, kUInt},
    {"bool", 1, kBool},     {"float64", 8, kFloat}, {"int64", 8, kInt}};

constexpr KindSpec kKinds[kKindCount] = {
#define KIND(Name, text, least, most, attrs, algs, ...) {text, least, most, attrs, algs},
#include "common/kind_rows.h"
#undef KIND
};

class Reader : private GraphReader {
 public:
  Graph Read(const json::Value& document) {
    const json::Object& root = AsObject(document, "graph");
    CheckVersion(root);
    AllowOnly(root, "format version name tensors inputs constants nodes outputs times", "graph");
    ReadName(root);
    ReadTensors(AsArray(Field(root, "tensors", "graph"), "tensors"));
    ReadInputs(AsArray(Field(root, "inputs", "graph"), "inputs"));
    ReadConstants(AsArray(Field(root, "constants", "graph"), "constants"));
    CheckSymbolsBound();
    const json::Array& nodes = AsArray(Field(root, "nodes", "graph"), "nodes");
    for (size_t i = 0; i < nodes.size(); ++i) ReadNode(nodes[i], Cat("node ", i));
    ReadOutputs(AsArray(Field(root, "outputs", "graph"), "outputs"));
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
      std::visit(
          [&](auto field) {
            using Number = std::remove_reference_t<decltype(attrs->*field)>;
            attrs->*field = As<Number>(value, place);
          },
          FieldOf(name));
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
    if (const json::Value* source = json::Find(object, "source"))
      node.source = As<std::vector<std::string>>(*source, place);
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

  void CheckAllNodes() const {
    Shapes shapes;
    for (const Tensor& tensor : graph_.tensors) shapes.push_back(KnownDims(tensor.shape));
    for (const Node& node : graph_.nodes) CheckNode(graph_, node, shapes);
  }
};

}  // namespace

const char* Name(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
int64_t SizeOf(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }

bool IsStoredAs(DType dtype, int dlpack_code, int bits) {
  if (dtype == DType::kBool && dlpack_code == kUInt) return bits == 1;  // TVM's older spelling
  const DTypeRow& row = kDTypes[static_cast<int>(dtype)];
  return dlpack_code == row.dlpack_code && (dtype == DType::kBool || bits == row.size * 8);
}

const char* Name(Kind kind) { return SpecOf(kind).name; }
const KindSpec& SpecOf(Kind kind) { return kKinds[static_cast<int>(kind)]; }

std::optional<Kind> FindKind(std::string_view name) {
  for (int i = 0; i < kKindCount; ++i) {
    if (name == kKinds[i].name) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

std::optional<DType> FindDType(std::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

const AttrField& FieldOf(const std::string& attr) {
  static const std::map<std::string, AttrField> fields = {
      {"strides", &Attrs::strides},
      {"dilations", &Attrs::dilations},
      {"pad_begin", &Attrs::pad_begin},
      {"pad_end", &Attrs::pad_end},
      {"kernel", &Attrs::kernel},
      {"axes", &Attrs::axes},
      {"begin", &Attrs::begin},
      {"steps", &Attrs::steps},
      {"table", &Attrs::table},
      {"axis", &Attrs::axis},
      {"group_size", &Attrs::group_size},
      {"local_size", &Attrs::local_size},
      {"window", &Attrs::window},
      {"scale_bits", &Attrs::scale_bits},
      {"alpha", &Attrs::alpha},
      {"beta", &Attrs::beta},
      {"k", &Attrs::k},
      {"p", &Attrs::p},
      {"epsilon", &Attrs::epsilon},
      {"value", &Attrs::value},
      {"scale", &Attrs::scale},
      {"softcap", &Attrs::softcap},
      {"clip", &Attrs::clip},
      {"alphas", &Attrs::alphas},
      {"betas", &Attrs::betas},
      {"roles", &Attrs::roles},
      {"directions", &Attrs::directions},
      {"activations", &Attrs::activations},
      {"results", &Attrs::results},
  };
  return fields.at(attr);
}

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

KnownTimes ReadKnownTimes(const json::Value& document) {
  const json::Object& root = AsObject(document, "times");
  AllowOnly(root, "setting workloads", "times");
  KnownTimes times;
  times.setting = AsString(Field(root, "setting", "times"), "times: setting");
  for (const auto& [workload, candidates] :
       AsObject(Field(root, "workloads", "times"), "times: workloads")) {
    const std::string where = Cat("times: \"", workload, "\"");
    for (const auto& [name, value] : AsObject(candidates, where)) {
      const json::Array& pair = AsArray(value, where);
      if (pair.size() != 2) {
        Fail(ErrorKind::kGraph, where, ": got ", pair.size(),
             " numbers, expected [seconds, model]");
      }
      const KnownTimes::Time time{AsNumber(pair[0], where), AsNumber(pair[1], where)};
      if (!(time.seconds > 0 && time.model > 0)) {
        Fail(ErrorKind::kGraph, where, ": got ", time.seconds, " and ", time.model,
             ", expected numbers above 0");
      }
      times.workloads[workload][name] = time;
    }
  }
  return times;
}

json::Object WriteKnownTimes(const KnownTimes& times) {
  json::Object workloads;
  for (const auto& [workload, candidates] : times.workloads) {
    json::Object object;
    for (const auto& [name, time] : candidates) {
      object.emplace_back(name, json::Array{time.seconds, time.model});
    }
    workloads.emplace_back(workload, std::move(object));
  }
  json::Object root;
  root.emplace_back("setting", times.setting);
  root.emplace_back("workloads", std::move(workloads));
  return root;
}

}  // namespace tvm_byoc_dnnl
