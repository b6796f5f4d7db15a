// SPDX-License-Identifier: Apache-2.0
// Functions that are compiled already: run in this process from a shared library, exported as the
// object file that it was linked from.
//
// TVM's static_library module can only be exported, so an executable with one in it is exported,
// linked and loaded again, constants and all, before it runs. With this one it runs as it is.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <fstream>
#include <string>
#include <utility>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

class ObjectModule final : public ffi::ModuleObj {
 public:
  ObjectModule(ffi::Bytes object, ffi::Module library, ffi::String source)
      : object_(std::move(object)), library_(std::move(library)), source_(std::move(source)) {}

  const char* kind() const final { return "object"; }
  int GetPropertyMask() const final {
    return ffi::Module::kRunnable | ffi::Module::kCompilationExportable;
  }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    return library_->GetFunction(name);
  }
  ffi::Array<ffi::String> GetWriteFormats() const final { return {"o"}; }
  ffi::String InspectSource(const ffi::String&) const final { return source_; }

  void WriteToFile(const ffi::String& path, const ffi::String&) const final {
    std::ofstream file(std::string(path), std::ios::binary);
    file.write(object_.data(), static_cast<std::streamsize>(object_.size()));
    file.close();
    if (!file) throw ffi::Error("RuntimeError", Cat("cannot write the object file ", path), "");
  }

 private:
  ffi::Bytes object_;
  ffi::Module library_;
  ffi::String source_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def(
      "tvm_byoc_dnnl.ObjectModuleCreate",
      [](const ffi::Bytes& object, const ffi::Module& library, const ffi::String& source) {
        return ffi::Module(ffi::make_object<ObjectModule>(object, library, source));
      });
}

}  // namespace
}  // namespace tvm_byoc_dnnl
