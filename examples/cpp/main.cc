// SPDX-License-Identifier: Apache-2.0
// Runs a compiled model without Python:
//   run_model [--library libtvm_byoc_dnnl.so] [--repeat N] [--expect FILE]... model.so INPUT...
// One raw file per input (dense, row-major); --expect, once per output in order, compares the bits.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

struct Arguments {
  std::string library, model;
  std::vector<std::string> inputs, expected;
  int repeat = 1;
};

/// Memory for tensors; TVM's own allocator is behind headers that its wheel does not have in full.
struct HostMemory {
  void AllocData(DLTensor* tensor) {
    const size_t bytes = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Describe(const ffi::Tensor& tensor) {
  std::string text = std::string(ffi::DLDataTypeToString(tensor.dtype())) + " [";
  for (int axis = 0; axis < tensor.ndim(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(tensor.shape()[axis]);
  }
  return text + "]";
}

/// What the model says of its inputs: JSON in a tensor of bytes, which tvm_byoc_dnnl.compile adds.
ffi::json::Array InputsOf(const ffi::Module& vm) {
  ffi::Optional<ffi::Function> metadata = vm->GetFunction("byoc_metadata");
  if (!metadata) throw std::runtime_error("the model does not describe its inputs");
  ffi::Tensor bytes = (*metadata)().cast<ffi::Tensor>();
  const ffi::String text(static_cast<const char*>(bytes.data_ptr()), ffi::GetDataSize(bytes));
  return ffi::json::Parse(text)
      .cast<ffi::json::Object>()[ffi::String("inputs")]
      .cast<ffi::json::Array>();
}

ffi::Tensor ReadInput(const ffi::json::Object& input, const std::string& path) {
  const std::string name = input[ffi::String("name")].cast<ffi::String>();
  std::vector<int64_t> shape;
  for (const ffi::Any& dim : input[ffi::String("shape")].cast<ffi::json::Array>()) {
    std::optional<int64_t> value = dim.as<int64_t>();
    if (!value) throw std::runtime_error("input " + name + " has a symbolic shape");
    shape.push_back(*value);
  }
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(
      HostMemory(), ffi::ShapeView(shape.data(), shape.size()),
      ffi::StringToDLDataType(input[ffi::String("dtype")].cast<ffi::String>()),
      DLDevice{kDLCPU, 0});
  const std::vector<char> data = ReadFile(path);
  if (data.size() != ffi::GetDataSize(tensor)) {
    throw std::runtime_error(path + " has " + std::to_string(data.size()) + " bytes, input " +
                             name + " is " + Describe(tensor) + ", " +
                             std::to_string(ffi::GetDataSize(tensor)) + " bytes");
  }
  std::memcpy(tensor.data_ptr(), data.data(), data.size());
  return tensor;
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool option = word.rfind("--", 0) == 0;
    if (option && i + 1 == argc) throw std::invalid_argument(word + " needs a value");
    if (word == "--library") {
      arguments.library = argv[++i];
    } else if (word == "--expect") {
      arguments.expected.push_back(argv[++i]);
    } else if (word == "--repeat") {
      arguments.repeat = std::stoi(argv[++i]);
    } else if (option) {
      throw std::invalid_argument("unknown option " + word);
    } else if (arguments.model.empty()) {
      arguments.model = word;
    } else {
      arguments.inputs.push_back(word);
    }
  }
  if (arguments.model.empty()) {
    throw std::invalid_argument(
        "usage: run_model [--library libtvm_byoc_dnnl.so] [--repeat N] [--expect FILE]... "
        "model.so INPUT...");
  }
  return arguments;
}

int Run(const Arguments& arguments) {
  // TVM's pool would bind this thread to half of the cores, and oneDNN's team inherits the mask.
  setenv("TVM_BIND_THREADS", "0", /*overwrite=*/0);
  // Only module output needs it, unless the model was linked to it. It registers itself with TVM.
  if (!arguments.library.empty() &&
      dlopen(arguments.library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw std::runtime_error(dlerror());
  }
  const bool has_folder = arguments.model.find('/') != std::string::npos;
  ffi::Module library =
      ffi::Module::LoadFromFile(has_folder ? arguments.model : "./" + arguments.model);
  ffi::Module vm = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  vm->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);

  const ffi::json::Array described = InputsOf(vm);
  if (described.size() != arguments.inputs.size()) {
    throw std::runtime_error("the model has " + std::to_string(described.size()) + " inputs, got " +
                             std::to_string(arguments.inputs.size()) + " files");
  }
  std::vector<ffi::Tensor> inputs;
  for (size_t i = 0; i < described.size(); ++i) {
    inputs.push_back(ReadInput(described[i].cast<ffi::json::Object>(), arguments.inputs[i]));
  }
  const std::vector<ffi::AnyView> views(inputs.begin(), inputs.end());
  ffi::Function main = vm->GetFunction("main").value();
  ffi::Any result;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < arguments.repeat; ++i) {
    main.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  }
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;

  std::vector<ffi::Tensor> outputs;
  if (std::optional<ffi::Tensor> single = result.as<ffi::Tensor>()) {
    outputs.push_back(*single);
  } else {
    for (const ffi::Tensor& each : result.cast<ffi::Array<ffi::Tensor>>()) outputs.push_back(each);
  }
  int status = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::cout << "output " << i << ": " << Describe(outputs[i]);
    if (i < arguments.expected.size()) {
      const std::vector<char> expected = ReadFile(arguments.expected[i]);
      const bool same = expected.size() == ffi::GetDataSize(outputs[i]) &&
                        std::memcmp(expected.data(), outputs[i].data_ptr(), expected.size()) == 0;
      std::cout << (same ? ", as expected" : ", differs from " + arguments.expected[i]);
      if (!same) status = 1;
    }
    std::cout << "\n";
  }
  std::cout << spent.count() / arguments.repeat << " ms per call\n";
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(Parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << "\n";
    return 2;
  }
}
