// SPDX-License-Identifier: Apache-2.0
#include "native/blob_runner.h"

#include <dlfcn.h>

#include <cctype>
#include <stdexcept>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

/// Room for a runner's message.
struct Message {
  char text[1024] = "";

  std::string Get() {
    text[sizeof(text) - 1] = 0;
    return text[0] != 0 ? text : "its runner says nothing";
  }
};

}  // namespace

std::string RunnerLibrary(const std::string& compiler) {
  for (char c : compiler) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') continue;
    Fail(ErrorKind::kArtifact, "no runner in C is looked for: its compiler's name has ",
         compiler.size(), " characters, and others than letters, digits and _");
  }
  return Cat("libtvm_byoc_runner_", compiler, ".so");
}

const tvm_byoc_runner& LoadRunner(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    Fail(ErrorKind::kLibrary, "cannot load the runner ", library, ": ",
         error == nullptr ? "no reason is known" : error);
  }
  using Entry = const tvm_byoc_runner* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "tvm_byoc_blob_runner"));
  const tvm_byoc_runner* runner = entry == nullptr ? nullptr : entry();
  if (runner == nullptr)
    Fail(ErrorKind::kLibrary, library, " does not export tvm_byoc_blob_runner, or it gives NULL");
  if (runner->abi != TVM_BYOC_RUNNER_ABI) {
    Fail(ErrorKind::kLibrary, library, " was made for version ", runner->abi,
         " of tvm_byoc_runner.h, and here is ", TVM_BYOC_RUNNER_ABI);
  }
  if (!runner->check || !runner->load || !runner->run || !runner->free)
    Fail(ErrorKind::kLibrary, library, ": a function of its tvm_byoc_runner is NULL");
  return *runner;
}

tvm_byoc_fit CheckBlob(const tvm_byoc_runner& runner, const std::string& compatibility,
                       std::string* reason) {
  Message message;
  const int32_t fit = runner.check(compatibility.c_str(), message.text, sizeof(message.text));
  *reason = message.Get();
  return fit == TVM_BYOC_FITS    ? TVM_BYOC_FITS
         : fit == TVM_BYOC_WORKS ? TVM_BYOC_WORKS
                                 : TVM_BYOC_REFUSED;
}

OpenedBlob::OpenedBlob(const tvm_byoc_runner& runner, std::string_view bytes,
                       const std::string& options)
    : runner_(runner) {
  Message message;
  void* region = nullptr;
  const int32_t status = runner.load(bytes.data(), bytes.size(), options.c_str(), &region,
                                     message.text, sizeof(message.text));
  if (status != 0) throw std::runtime_error(message.Get());
  region_ = std::shared_ptr<void>(region, runner.free);
}

void OpenedBlob::Run(const std::vector<tvm_byoc_tensor>& tensors) const {
  Message message;
  const int32_t status = runner_.run(region_.get(), tensors.data(), tensors.size(), message.text,
                                     sizeof(message.text));
  if (status != 0) throw std::runtime_error(message.Get());
}

}  // namespace tvm_byoc_dnnl
