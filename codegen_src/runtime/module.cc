// SPDX-License-Identifier: Apache-2.0
// The boundary to TVM: the runtime module, the functions that Python calls, and the mapping of
// errors. Together with threads.cc the only file that sees tvm-ffi.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <dnnl.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/support/error.h"
#include "common/support/json.h"
#include "dnnl/emit.h"
#include "dnnl/region.h"
#include "dnnl/report.h"
#include "runtime/guarded.h"
#include "runtime/threads.h"
#include "runtime/version.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

bool HasDType(const DLDataType& got, DType expected) {
  if (got.lanes != 1) return false;
  const int bits = static_cast<int>(SizeOf(expected)) * 8;
  switch (expected) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kFloat64:
      return got.code == kDLFloat && got.bits == bits;
    case DType::kBFloat16:
      return got.code == kDLBfloat && got.bits == bits;
    case DType::kInt32:
    case DType::kInt8:
    case DType::kInt64:
      return got.code == kDLInt && got.bits == bits;
    case DType::kUInt8:
      return got.code == kDLUInt && got.bits == bits;
    case DType::kBool:  // TVM's older spelling is uint1
      return got.code == kDLBool || (got.code == kDLUInt && got.bits == 1);
  }
  return false;
}

bool IsContiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t stride = 1;
  bool contiguous = true;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 0) return true;  // no elements
    contiguous &= tensor.shape[axis] == 1 || tensor.strides[axis] == stride;
    stride *= tensor.shape[axis];
  }
  return contiguous;
}

Dims ShapeOf(const DLTensor& tensor) { return Dims(tensor.shape, tensor.shape + tensor.ndim); }

/// The names by which messages call an argument.
struct ArgumentName {
  const Graph& graph;
  const char* role;  // "argument", "constant" ...
  size_t index;
  const Tensor& tensor;

  std::string operator()() const {
    return Cat(graph.name, ": ", role, " ", index, " \"", tensor.name, "\"");
  }
};

/// The data of a tensor that must have this dtype (and rank) and be dense in host memory.
void* CheckTensor(const DLTensor& tensor, const ArgumentName& name) {
  if (!HasDType(tensor.dtype, name.tensor.dtype)) {
    Fail(ErrorKind::kInput, name(), " has dtype ", ffi::DLDataTypeToString(tensor.dtype),
         ", expected ", tvm_byoc_dnnl::Name(name.tensor.dtype));
  }
  if (tensor.device.device_type != kDLCPU) {
    Fail(ErrorKind::kInput, name(), " is on device type ",
         static_cast<int>(tensor.device.device_type), ", expected the CPU");
  }
  if (tensor.ndim != static_cast<int>(name.tensor.shape.size())) {
    Fail(ErrorKind::kInput, name(), " has rank ", tensor.ndim, ", expected ",
         name.tensor.shape.size());
  }
  if (!IsContiguous(tensor)) {
    Fail(ErrorKind::kInput, name(), " has strides ",
         Join(Dims(tensor.strides, tensor.strides + tensor.ndim)), " for shape ",
         Join(ShapeOf(tensor)), ", expected a dense row-major tensor");
  }
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

void CheckShape(const DLTensor& tensor, const Dims& expected, const ArgumentName& name) {
  // Ranks agree: CheckTensor came first.
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] != expected[axis]) {
      Fail(ErrorKind::kInput, name(), " has shape ", Join(ShapeOf(tensor)), ", expected ",
           Join(expected));
    }
    elements *= tensor.shape[axis];
  }
  if (tensor.data == nullptr && elements != 0) Fail(ErrorKind::kInput, name(), " has no data");
}

const char* IsaName(dnnl::cpu_isa isa) {
  static constexpr std::pair<dnnl::cpu_isa, const char*> kNames[] = {
      {dnnl::cpu_isa::sse41, "sse41"},
      {dnnl::cpu_isa::avx, "avx"},
      {dnnl::cpu_isa::avx2, "avx2"},
      {dnnl::cpu_isa::avx2_vnni, "avx2_vnni"},
      {dnnl::cpu_isa::avx2_vnni_2, "avx2_vnni_2"},
      {dnnl::cpu_isa::avx512_core, "avx512_core"},
      {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
      {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
      {dnnl::cpu_isa::avx512_core_fp16, "avx512_core_fp16"},
      {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"},
      {dnnl::cpu_isa::avx512_core_amx_fp16, "avx512_core_amx_fp16"},
  };
  for (const auto& [known, name] : kNames) {
    if (known == isa) return name;
  }
  return "unknown";
}

class DnnlModule final : public ffi::ModuleObj {
 public:
  explicit DnnlModule(Artifact artifact)
      : artifact_(std::move(artifact)), region_(artifact_.graph_json) {
    const Graph& graph = region_.graph();
    if (graph.name != artifact_.symbol) {
      Fail(ErrorKind::kGraph, "the module's symbol is \"", artifact_.symbol,
           "\", its graph's name \"", graph.name, "\"");
    }
    std::vector<std::string> names;
    for (const Constant& constant : graph.constants) names.push_back(constant.name);
    if (names != artifact_.const_names) {
      Fail(ErrorKind::kGraph, graph.name, ": the constants are named ", Join(artifact_.const_names),
           ", in the graph ", Join(names));
    }
  }

  static ffi::Module Create(Artifact artifact) {
    return ffi::Module(ffi::make_object<DnnlModule>(std::move(artifact)));
  }

  const char* kind() const final { return "dnnl_byoc"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::String InspectSource(const ffi::String&) const final { return artifact_.graph_json; }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(Save(artifact_, WriterName())); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    // The functions keep the module alive.
    ffi::ObjectPtr<DnnlModule> self = ffi::GetObjectPtr<DnnlModule>(this);
    if (name == artifact_.symbol) {
      return ffi::Function::FromPacked(
          [self](ffi::PackedArgs args, ffi::Any*) { Guarded([&] { self->Call(args, nullptr); }); });
    }
    if (name == "__init_" + artifact_.symbol) {
      return ffi::Function::FromTyped([self](const ffi::Array<ffi::Tensor>& constants) {
        Guarded([&] { self->Initialise(constants); });
        return 0;
      });
    }
    if (name == "get_symbol") {
      return ffi::Function::FromTyped([self]() { return ffi::String(self->artifact_.symbol); });
    }
    if (name == "get_const_vars") {
      return ffi::Function::FromTyped([self]() {
        ffi::Array<ffi::String> names;
        for (const std::string& n : self->artifact_.const_names) names.push_back(ffi::String(n));
        return names;
      });
    }
    if (name == "save_to_bytes") {  // what export writes, for tools
      return ffi::Function::FromTyped([self]() { return self->SaveToBytes(); });
    }
    if (name == "describe") {
      return ffi::Function::FromPacked([self](ffi::PackedArgs args, ffi::Any* result) {
        *result = Guarded([&] { return self->Describe(args); });
      });
    }
    if (name == "profile") {
      return ffi::Function::FromPacked([self](ffi::PackedArgs args, ffi::Any* result) {
        json::Object report;
        Guarded([&] { self->Call(args, &report); });
        *result = ffi::String(json::Value(std::move(report)).Dump());
      });
    }
    return std::nullopt;
  }

 private:
  void Initialise(const ffi::Array<ffi::Tensor>& tensors) {
    const Graph& graph = region_.graph();
    if (tensors.size() != graph.constants.size()) {
      Fail(ErrorKind::kInput, graph.name, ": got ", tensors.size(), " constants, expected ",
           graph.constants.size());
    }
    std::vector<ConstantData> constants;
    for (size_t i = 0; i < graph.constants.size(); ++i) {
      const Tensor& expected = graph.tensors[graph.constants[i].tensor];
      ffi::Tensor tensor = tensors[i];
      const DLTensor& raw = *tensor.GetDLTensorPtr();
      ArgumentName name{graph, "constant", i, expected};
      void* data = CheckTensor(raw, name);
      CheckShape(raw, KnownDims(expected.shape), name);
      constants.push_back({data, std::make_shared<ffi::Tensor>(tensor)});
    }
    try {
      region_.Initialise(std::move(constants));
    } catch (const Error& error) {
      const char* isa = IsaName(dnnl::get_effective_cpu_isa());
      if (error.kind() != ErrorKind::kUnsupported || artifact_.isa == isa) throw;
      Fail(error.kind(), error.what(), ". This CPU has ", isa, ", the model was built on ",
           artifact_.isa, ": build it on a CPU like this one, or under ONEDNN_MAX_CPU_ISA");
    }
  }

  [[noreturn]] void FailNotInitialised() const {
    throw ffi::Error("RuntimeError",
                     Cat(artifact_.symbol, ": called before its constants were set: call __init_",
                         artifact_.symbol, " first (TVM's const_loader does)"),
                     "");
  }

  const DLTensor& TensorArg(const ffi::PackedArgs& args, size_t index, const char* role,
                            size_t number, const Tensor& expected) const {
    std::optional<DLTensor*> tensor = args[static_cast<int>(index)].try_cast<DLTensor*>();
    if (!tensor || *tensor == nullptr) {
      Fail(ErrorKind::kInput, ArgumentName{region_.graph(), role, number, expected}(),
           " is not a tensor but ", args[static_cast<int>(index)].GetTypeKey());
    }
    return **tensor;
  }

  /// inputs…, outputs… in order; with a report, measures the steps.
  void Call(const ffi::PackedArgs& args, json::Object* report) {
    const Graph& graph = region_.graph();
    const size_t expected = graph.inputs.size() + graph.outputs.size();
    if (static_cast<size_t>(args.size()) != expected) {
      Fail(ErrorKind::kInput, graph.name, ": got ", args.size(), " arguments, expected ", expected,
           " (", graph.inputs.size(), " inputs and ", graph.outputs.size(), " outputs)");
    }
    std::vector<void*> inputs(graph.inputs.size());
    std::vector<const DLTensor*> tensors(graph.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph.inputs[i].tensor < 0) continue;
      const Tensor& tensor = graph.tensors[graph.inputs[i].tensor];
      tensors[i] = &TensorArg(args, i, "argument", i, tensor);
      inputs[i] = CheckTensor(*tensors[i], {graph, "argument", i, tensor});
    }
    std::shared_ptr<const Plan> plan = PlanFor(args, tensors);
    for (size_t i = 0; i < inputs.size(); ++i) {
      int id = graph.inputs[i].tensor;
      if (id < 0) continue;
      CheckShape(*tensors[i], plan->shapes()[id], {graph, "argument", i, graph.tensors[id]});
    }
    std::vector<void*> outputs(graph.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      int id = graph.outputs[i];
      ArgumentName name{graph, "output", i, graph.tensors[id]};
      const DLTensor& tensor = TensorArg(args, inputs.size() + i, name.role, i, graph.tensors[id]);
      outputs[i] = CheckTensor(tensor, name);
      CheckShape(tensor, plan->shapes()[id], name);
    }
    if (report == nullptr) {
      plan->Run(inputs, outputs);
    } else {
      *report = DescribeProfile(graph, *plan, plan->Profile(inputs, outputs));
    }
  }

  std::shared_ptr<const Plan> PlanFor(const ffi::PackedArgs& args,
                                      const std::vector<const DLTensor*>& tensors) {
    const Graph& graph = region_.graph();
    std::shared_ptr<const Plan> plan;
    if (graph.IsStatic()) {
      plan = region_.StaticPlan();
    } else {
      std::vector<Dims> shapes;
      for (size_t i = 0; i < tensors.size(); ++i) {
        shapes.push_back(tensors[i] != nullptr ? ShapeOf(*tensors[i]) : ShapeArg(args, i));
      }
      plan = region_.PlanFor(shapes);
    }
    if (plan == nullptr) FailNotInitialised();
    return plan;
  }

  Dims ShapeArg(const ffi::PackedArgs& args, size_t index) const {
    std::optional<ffi::Shape> shape = args[static_cast<int>(index)].try_cast<ffi::Shape>();
    if (!shape) {
      Fail(ErrorKind::kInput, region_.graph().name, ": argument ", index, " is not a shape but ",
           args[static_cast<int>(index)].GetTypeKey());
    }
    return Dims(shape->begin(), shape->end());
  }

  /// The static plan, or that of a symbolic graph for the given shapes (one per input).
  ffi::String Describe(const ffi::PackedArgs& args) {
    const Graph& graph = region_.graph();
    const size_t expected = graph.IsStatic() ? 0 : graph.inputs.size();
    if (static_cast<size_t>(args.size()) != expected) {
      Fail(ErrorKind::kInput, graph.name, ": describe got ", args.size(), " shapes, expected ",
           expected);
    }
    std::shared_ptr<const Plan> plan = region_.StaticPlan();
    if (!graph.IsStatic()) {
      std::vector<Dims> shapes;
      for (size_t i = 0; i < expected; ++i) shapes.push_back(ShapeArg(args, i));
      plan = region_.PlanFor(shapes);
    }
    if (plan == nullptr) FailNotInitialised();
    return json::Value(DescribePlan(graph, *plan)).Dump();
  }

  const Artifact artifact_;
  Region region_;
};

/// A static graph as source, a function of TVM or stand-alone; the names of its constants are
/// checked as for a module.
ffi::String Emit(const ffi::String& graph_json, const ffi::Array<ffi::String>& const_names,
                 bool as_function) {
  return Guarded([&] {
    const Graph graph = ParseGraph(std::string_view(graph_json.data(), graph_json.size()));
    if (!graph.IsStatic()) {
      Fail(ErrorKind::kUnsupported, graph.name, ": shapes depend on ", Join(graph.symbols),
           ", expected static ones to emit source: give them values first");
    }
    std::vector<std::string> names, expected;
    for (const ffi::String& name : const_names) names.push_back(name);
    for (const Constant& constant : graph.constants) expected.push_back(constant.name);
    if (names != expected) {
      Fail(ErrorKind::kGraph, graph.name, ": the constants are named ", Join(names),
           ", in the graph ", Join(expected));
    }
    return ffi::String(
        EmitSource(graph, Lowering(graph, Specialise(graph, {}), CpuEngine()).Run(),
                   as_function ? SourceForm::kTvmFunction : SourceForm::kStandalone));
  });
}

std::string DnnlVersion() {
  const dnnl_version_t* version = dnnl_version();
  return Cat(version->major, ".", version->minor, ".", version->patch);
}

ffi::String Info() {
  json::Object info;
  info.emplace_back("plugin_version", TVM_BYOC_DNNL_VERSION);
  info.emplace_back("format_version", static_cast<int64_t>(kFormatVersion));
  info.emplace_back("graph_version", kGraphVersion);
  info.emplace_back("dnnl_version", DnnlVersion());
  info.emplace_back("dnnl_hash", dnnl_version()->hash);
  info.emplace_back("cpu_runtime", TVM_BYOC_DNNL_CPU_RUNTIME);
  info.emplace_back("isa", IsaName(dnnl::get_effective_cpu_isa()));
  info.emplace_back("max_threads", MaxThreads());
  return json::Value(std::move(info)).Dump();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  KeepTeamOnAllCores();
  SurviveForks();
  refl::GlobalDef()
      .def("ffi.Module.load_from_bytes.dnnl_byoc",
           [](const ffi::Bytes& bytes) {
             return Guarded([&] {
               return DnnlModule::Create(Load(std::string_view(bytes.data(), bytes.size())));
             });
           })
      .def("tvm_byoc_dnnl.ModuleCreate",
           [](const ffi::String& symbol, const ffi::String& graph_json,
              const ffi::Array<ffi::String>& const_names) {
             Artifact artifact{symbol, graph_json, {}, IsaName(dnnl::get_effective_cpu_isa())};
             for (const ffi::String& name : const_names) artifact.const_names.push_back(name);
             return Guarded([&] { return DnnlModule::Create(std::move(artifact)); });
           })
      .def("tvm_byoc_dnnl.Probe",
           [](const ffi::String& graph_json) {
             return Guarded([&] {
               return ffi::String(Probe(std::string_view(graph_json.data(), graph_json.size())));
             });
           })
      .def("tvm_byoc_dnnl.Emit", Emit)
      .def("tvm_byoc_dnnl.Info", Info)
      .def("tvm_byoc_dnnl.UseOpenMPForTVM", UseOpenMPForTVM);
}

}  // namespace

std::string WriterName() {
  return Cat("tvm-byoc-dnnl ", TVM_BYOC_DNNL_VERSION, " with oneDNN ", DnnlVersion());
}

}  // namespace tvm_byoc_dnnl
