// SPDX-License-Identifier: Apache-2.0
// A saved module as TVM's runtime meets it: loaded from bytes, given constants, called. The input
// is the graph; large but sound graphs are only loaded, since what they allocate is what they say.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/engine.h"
#include "common/graph.h"
#include "common/support/error.h"
#include "fuzz.h"

using namespace tvm_byoc_dnnl;  // NOLINT: a test

namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kMaxBytes = 1 << 16;  // of all tensors: what a run may take
constexpr size_t kMaxNodes = 40;
constexpr unsigned char kCanary = 0xA5;
constexpr size_t kCanaryBytes = 256;

struct HostAllocator {
  void AllocData(DLTensor* tensor) {
    size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = std::malloc(bytes + kCanaryBytes);
    std::memset(tensor->data, 1, bytes);  // small integers, small or denormal floats: never NaN
    std::memset(static_cast<char*>(tensor->data) + bytes, kCanary, kCanaryBytes);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

DLDataType TypeOf(DType dtype) {
  DLDataType type = ffi::StringToDLDataType(Name(dtype));
  return type;
}

ffi::Tensor NewTensor(const Tensor& tensor, const Dims& shape) {
  return ffi::Tensor::FromNDAlloc(HostAllocator(), ffi::ShapeView(shape.data(), shape.size()),
                                  TypeOf(tensor.dtype), DLDevice{kDLCPU, 0});
}

/// The library writes nothing behind the end.
void CheckCanary(const ffi::Tensor& tensor) {
  const DLTensor& raw = *tensor.GetDLTensorPtr();
  const auto* end = static_cast<const unsigned char*>(raw.data) + ffi::GetDataSize(raw);
  fuzz::Require(
      std::all_of(end, end + kCanaryBytes, [](unsigned char byte) { return byte == kCanary; }),
      "a write behind the end of a tensor");
}

/// Whether running it costs little.
bool IsSmall(const Graph& graph, const Shapes& shapes) {
  int64_t bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    int64_t count = 1;
    for (int64_t dim : shapes[i]) count = std::min(kMaxBytes, count * std::min(dim, kMaxBytes));
    bytes += count * SizeOf(graph.tensors[i].dtype);
  }
  return bytes <= kMaxBytes && graph.nodes.size() <= kMaxNodes;
}

void InitialiseAndRun(const ffi::Module& module, const Graph& graph, int64_t symbol) {
  std::vector<int64_t> symbols(graph.symbols.size(), symbol);
  Shapes shapes;
  try {
    shapes = Specialise(graph, symbols);
    for (const Input& input : graph.inputs) Evaluate(input.shape, symbols);
  } catch (const Error&) {
    return;  // graph_fuzz looks at these
  }
  if (!IsSmall(graph, shapes)) return;
  ffi::Array<ffi::Tensor> constants;
  for (const Constant& constant : graph.constants) {
    constants.push_back(NewTensor(graph.tensors[constant.tensor], shapes[constant.tensor]));
  }
  module->GetFunction("__init_" + graph.name).value()(constants);
  std::vector<ffi::Any> arguments;
  std::vector<ffi::Tensor> tensors;
  auto pass = [&](int id) {
    tensors.push_back(NewTensor(graph.tensors[id], shapes[id]));
    arguments.emplace_back(tensors.back());
  };
  for (const Input& input : graph.inputs) {
    if (input.tensor >= 0) {
      pass(input.tensor);
    } else {
      Dims dims = Evaluate(input.shape, symbols);
      arguments.emplace_back(ffi::Shape(dims.begin(), dims.end()));
    }
  }
  for (int output : graph.outputs) pass(output);
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  module->GetFunction(graph.name)
      .value()
      .CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  for (const ffi::Tensor& tensor : tensors) CheckCanary(tensor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool registered = [] {
    return RegisterEngine("dnnl", std::unique_ptr<const Engine>(TvmByocEngine())), true;
  }();
  fuzz::Require(registered, "the engine");
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes.dnnl_byoc");
  Artifact artifact{"dnnl_0", std::string(fuzz::Text(data, size)), {}};
  Graph graph;
  try {
    graph = ParseGraph(artifact.graph_json);
    artifact.symbol = graph.name;
    for (const Constant& constant : graph.constants) artifact.const_names.push_back(constant.name);
  } catch (const Error&) {
    // The module must find out by itself.
  }
  try {
    ffi::Module module = load(ffi::Bytes(Save(artifact, "fuzz"))).cast<ffi::Module>();
    fuzz::Require(!graph.outputs.empty(), "a malformed graph was loaded");
    for (int64_t symbol : {0, 1, 3}) {
      InitialiseAndRun(module, graph, symbol);
      if (graph.IsStatic()) break;
    }
  } catch (const ffi::Error& error) {
    const std::string kind = error.kind();
    // RuntimeError: oneDNN's own refusals, with its status.
    const bool promised = kind.rfind("Byoc", 0) == 0 || kind == "RuntimeError";
    fuzz::Require(promised, kind + ": " + error.message());
  }
  return 0;
}
