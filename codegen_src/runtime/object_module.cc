// SPDX-License-Identifier: Apache-2.0
// Functions that are compiled already: run in this process from another module, such as the shared
// library that was linked of them, and exported as an object file in memory.
//
// TVM's static_library module can only be exported, so an executable with one in it is exported,
// linked and loaded again, constants and all, before it runs. With this one it runs as it is.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>

#include "common/data_object.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

class ObjectModule final : public ffi::ModuleObj {
 public:
  ObjectModule(ffi::Bytes object, ffi::Module library, ffi::String source, ffi::String kind)
      : object_(std::move(object)),
        library_(std::move(library)),
        source_(std::move(source)),
        kind_(std::move(kind)) {}

  const char* kind() const final { return kind_.c_str(); }
  int GetPropertyMask() const final {
    return ffi::Module::kRunnable | ffi::Module::kCompilationExportable;
  }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    return library_->GetFunction(name);
  }
  ffi::Array<ffi::String> GetWriteFormats() const final { return {"o"}; }
  ffi::String InspectSource(const ffi::String&) const final { return source_; }

  void WriteToFile(const ffi::String& path, const ffi::String&) const final {
    Guarded([&] {
      OutputFile file(path);
      file.Write({object_.data(), object_.size()});
      file.Close();
    });
  }

 private:
  ffi::Bytes object_;
  ffi::Module library_;
  ffi::String source_;
  ffi::String kind_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def(
      "tvm_byoc_dnnl.ObjectModuleCreate", [](const ffi::Bytes& object, const ffi::Module& library,
                                             const ffi::String& source, const ffi::String& kind) {
        return ffi::Module(ffi::make_object<ObjectModule>(object, library, source, kind));
      });
}

}  // namespace
}  // namespace tvm_byoc_dnnl
