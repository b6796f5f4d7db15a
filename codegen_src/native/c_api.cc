// SPDX-License-Identifier: Apache-2.0
// The C interface: checks what the caller says of its tensors, and turns exceptions into a status.
#include <malloc.h>

#include <memory>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/engine.h"
#include "common/graph.h"
#include "common/support/error.h"
#include "native/library_record.h"
#include "native/model.h"
#include "native/threads.h"
#include "native/tvm_byoc_runtime.h"

struct tvm_byoc_model {
  std::string description;
  std::unique_ptr<tvm_byoc_dnnl::Model> model;
};

namespace tvm_byoc_dnnl {
namespace {

static_assert(TVM_BYOC_INT64 == static_cast<int>(DType::kInt64) &&
                  TVM_BYOC_BOOL == static_cast<int>(DType::kBool),
              "the dtypes of the C interface are ours, in their order");

thread_local std::string last_error;

const bool survives_forks = [] {
  SurviveForks();
  return true;
}();

int32_t StatusOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInput:
      return TVM_BYOC_INPUT;
    case ErrorKind::kUnsupported:
      return TVM_BYOC_UNSUPPORTED;
    case ErrorKind::kLibrary:
      return TVM_BYOC_LIBRARY;
    case ErrorKind::kGraph:  // of a file
    case ErrorKind::kArtifact:
      return TVM_BYOC_ARTIFACT;
  }
  return TVM_BYOC_INTERNAL;
}

/// The message is lost where there is no memory for it.
int32_t Failed(int32_t status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

template <typename Body>
int32_t Guarded(const Body& body) noexcept {
  try {
    const HoldsForks here;
    body();
    return TVM_BYOC_OK;
  } catch (const Error& error) {
    return Failed(StatusOf(error.kind()), error.what());
  } catch (const std::out_of_range& error) {  // an index in the data of a call
    return Failed(TVM_BYOC_INDEX, error.what());
  } catch (const std::bad_alloc&) {
    return Failed(TVM_BYOC_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Failed(TVM_BYOC_INTERNAL, error.what());
  } catch (...) {
    return Failed(TVM_BYOC_INTERNAL, "an unknown exception");
  }
}

void Need(const void* pointer, const char* name) {
  if (pointer == nullptr) Fail(ErrorKind::kInput, name, " is NULL");
}

void NeedCount(const char* what, size_t got, size_t expected) {
  if (got != expected) Fail(ErrorKind::kInput, "got ", got, " ", what, ", expected ", expected);
}

/// What an error says of a tensor of the caller's; most calls need no text.
struct Given {
  const char* role;
  const Graph& graph;
  int value;
};

std::ostream& operator<<(std::ostream& out, const Given& name) {
  return out << name.role << " \"" << name.graph.tensors[name.value].name << '"';
}

Dims ShapeOf(const tvm_byoc_tensor& tensor, const Given& name) {
  if (tensor.rank < 0 || (tensor.rank > 0 && tensor.shape == nullptr))
    Fail(ErrorKind::kInput, name, " has rank ", tensor.rank, " and no shape");
  Dims shape(tensor.shape, tensor.shape + tensor.rank);
  for (int64_t dim : shape) {
    if (dim < 0) Fail(ErrorKind::kInput, name, " has shape ", Join(shape));
  }
  return shape;
}

void CheckData(const tvm_byoc_tensor& tensor, const Dims& shape, const Given& name) {
  const Tensor& expected = name.graph.tensors[name.value];
  if (tensor.dtype != static_cast<int32_t>(expected.dtype))
    Fail(ErrorKind::kInput, name, " has dtype ", tensor.dtype, ", expected ",
         static_cast<int>(expected.dtype), " (", Name(expected.dtype), ")");
  if (tensor.data == nullptr && ElementCount(shape) != 0)
    Fail(ErrorKind::kInput, name, " has no data");
}

/// Of all inputs; with `data`, that is checked as well.
std::vector<Dims> InputShapes(const Graph& graph, const tvm_byoc_tensor* inputs, size_t count,
                              bool data) {
  NeedCount("inputs", count, graph.inputs.size());
  if (count > 0) Need(inputs, "inputs");
  std::vector<Dims> shapes;
  for (size_t i = 0; i < count; ++i) {
    const Given name = {"input", graph, graph.inputs[i].tensor};
    shapes.push_back(ShapeOf(inputs[i], name));
    if (data) CheckData(inputs[i], shapes.back(), name);
  }
  return shapes;
}

/// The sizes of a call with these inputs, and as many outputs.
std::shared_ptr<const Model::Sizes> SizesFor(tvm_byoc_model* model, const tvm_byoc_tensor* inputs,
                                             size_t input_count, const tvm_byoc_tensor* outputs,
                                             size_t output_count, bool data) {
  Need(model, "model");
  const Graph& graph = model->model->program().graph;
  NeedCount("outputs", output_count, graph.outputs.size());
  Need(outputs, "outputs");
  return model->model->SizesFor(InputShapes(graph, inputs, input_count, data));
}

}  // namespace
}  // namespace tvm_byoc_dnnl

using namespace tvm_byoc_dnnl;  // NOLINT: the functions below have C's names

extern "C" {

int32_t tvm_byoc_abi(void) { return TVM_BYOC_ABI; }

const char* tvm_byoc_last_error(void) { return last_error.c_str(); }

int32_t tvm_byoc_load(const char* path, int32_t threads, tvm_byoc_model** model) {
  return Guarded([&] {
    Need(model, "model");
    *model = nullptr;
    Need(path, "path");
    if (threads < 0) Fail(ErrorKind::kInput, "threads is ", threads, ", expected 0 or more");
    auto made = std::make_unique<tvm_byoc_model>();
    made->model = std::make_unique<Model>(ReadModelFile(path), threads);
    made->description = json::Value(made->model->program().signature).Dump();
    *model = made.release();
  });
}

void tvm_byoc_free(tvm_byoc_model* model) { delete model; }

const char* tvm_byoc_describe(const tvm_byoc_model* model) {
  return model == nullptr ? "" : model->description.c_str();
}

int32_t tvm_byoc_shapes(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count,
                        tvm_byoc_tensor* outputs, size_t output_count) {
  return Guarded([&] {
    const auto sizes = SizesFor(model, inputs, input_count, outputs, output_count, /*data=*/false);
    const Graph& graph = model->model->program().graph;
    for (size_t i = 0; i < output_count; ++i) {
      const Dims& shape = sizes->shapes[graph.outputs[i]];
      const auto rank = static_cast<int32_t>(shape.size());
      if (outputs[i].rank < rank || (rank > 0 && outputs[i].shape == nullptr))
        Fail(ErrorKind::kInput, Given{"output", graph, graph.outputs[i]}, " has room for ",
             outputs[i].rank, " dims, expected ", rank);
      for (int32_t axis = 0; axis < rank; ++axis) outputs[i].shape[axis] = shape[axis];
      outputs[i].rank = rank;
    }
  });
}

int32_t tvm_byoc_prepare(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count) {
  return Guarded([&] {
    Need(model, "model");
    const Graph& graph = model->model->program().graph;
    model->model->Prepare(InputShapes(graph, inputs, input_count, /*data=*/false));
  });
}

int32_t tvm_byoc_run(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count,
                     const tvm_byoc_tensor* outputs, size_t output_count) {
  return Guarded([&] {
    const auto sizes = SizesFor(model, inputs, input_count, outputs, output_count, /*data=*/true);
    const Graph& graph = model->model->program().graph;
    std::vector<void*> from, to;
    for (size_t i = 0; i < input_count; ++i) from.push_back(inputs[i].data);
    for (size_t i = 0; i < output_count; ++i) {
      const int value = graph.outputs[i];
      const Given name = {"output", graph, value};
      const Dims shape = ShapeOf(outputs[i], name);
      if (shape != sizes->shapes[value])
        Fail(ErrorKind::kInput, name, " has shape ", Join(shape), ", expected ",
             Join(sizes->shapes[value]));
      CheckData(outputs[i], shape, name);
      to.push_back(outputs[i].data);
    }
    model->model->Run(*sizes, from, to);
  });
}

int32_t tvm_byoc_company(tvm_byoc_model* model, int64_t* late, int64_t* narrowed) {
  return Guarded([&] {
    Need(model, "model");
    Need(late, "late");
    Need(narrowed, "narrowed");
    *late = *narrowed = 0;
    for (const auto& region : model->model->regions()) {
      *late += region->late();
      *narrowed += region->narrowed();
    }
  });
}

int32_t tvm_byoc_check(const char* file, const char* path, const char* key) {
  return Guarded([&] {
    Need(file, "file");
    Need(path, "path");
    Need(key, "key");
    CheckLibrary(file, path, key);
  });
}

int32_t tvm_byoc_engine(const char* name, const char** description) {
  return Guarded([&] {
    Need(description, "description");
    *description = "";
    Need(name, "name");
    thread_local std::string told;
    told = json::Value(FindEngine(name).Info()).Dump();
    *description = told.c_str();
  });
}

void tvm_byoc_trim(void) {
  Guarded([] { ForgetAll(); });
  malloc_trim(0);
}

}  // extern "C"
