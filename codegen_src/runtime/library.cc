// SPDX-License-Identifier: Apache-2.0
// Loading of exported libraries, by what their files hold now; and object files in memory.
//
// tvm-ffi looks up the loader of a file by its suffix. Ours takes that place for libraries that
// export_library of this package has written, so that a file which was replaced is loaded anew by
// TVM alone and by C++ programs, too. All other libraries go on to tvm-ffi's own as they are.
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/data_object.h"
#include "common/file_identity.h"
#include "common/mapped.h"
#include "common/support/error.h"
#include "native/library_record.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr const char* kLoader = "ffi.Module.load_from_file.so";

/// The error with the path that was asked for, in place of the name that contains an identity.
ffi::Error Naming(const ffi::Error& error, const std::string& path, const std::string& name) {
  std::string message = error.message();
  for (size_t at; name != path && (at = message.find(name)) != std::string::npos;) {
    message.replace(at, name.size(), path);
  }
  return ffi::Error(error.kind(), message, error.backtrace());
}

ffi::Module Load(const ffi::Function& loader, const std::string& path) {
  return Guarded([&] {
    return LoadByContent(path, [&](const std::string& name) {
      const LoadingLibrary here(name);
      try {
        return loader(ffi::String(name), ffi::String("so")).cast<ffi::Module>();
      } catch (const ffi::Error& error) {
        throw Naming(error, path, name);
      }
    });
  });
}

/// For those who load by TVM alone. What has no record may be somebody else's.
ffi::Module LoadChecked(const ffi::Function& loader, const ffi::String& path,
                        const ffi::String& format) {
  const std::optional<FileIdentity> identity = IdentityOf(path);
  if (!identity) return loader(path, format).cast<ffi::Module>();
  Guarded([&] {
    if (identity->sealed) return CheckLibrary(path, path, "");
    const auto mapped = MapFile(path);
    CheckHeaders({mapped->data(), mapped->bytes()}, path);
  });
  return identity->sealed ? Load(loader, path) : loader(path, format).cast<ffi::Module>();
}

/// The length of a library without its record, and its record.
ffi::Array<ffi::Any> Record(const ffi::String& path, const ffi::String& key) {
  const auto mapped = MapFile(path);
  std::string_view data(mapped->data(), mapped->bytes());
  const std::string record = RecordOf(&data, key);
  return {static_cast<int64_t>(data.size()), ffi::Bytes(record)};
}

void WriteMark(const ffi::String& path) {
  WriteDataObject(path, std::string(kLibraryMark), {kLibraryMark});
}

/// Functions that are compiled already: run in this process from another module, such as the shared
/// library that was linked of them, and exported as an object file in memory.
///
/// TVM's static_library module can only be exported, so an executable with one in it is exported,
/// linked and loaded again, constants and all, before it runs. With this one it runs as it is.
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

ffi::Module CreateObject(const ffi::Bytes& object, const ffi::Module& library,
                         const ffi::String& source, const ffi::String& kind) {
  return ffi::Module(ffi::make_object<ObjectModule>(object, library, source, kind));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  const auto loader = ffi::Function::GetGlobalRequired(kLoader);
  ffi::reflection::GlobalDef().def("tvm_byoc_dnnl.LoadLibrary", [loader](const ffi::String& path) {
    return Load(loader, path);
  });
  ffi::reflection::GlobalDef()
      .def("tvm_byoc_dnnl.CheckLibrary", Door(CheckLibrary))
      .def("tvm_byoc_dnnl.LibraryRecord", Door(Record))
      .def("tvm_byoc_dnnl.WriteMark", Door(WriteMark))
      .def("tvm_byoc_dnnl.ObjectModuleCreate", Door(CreateObject));
  auto load = [loader](const ffi::String& path, const ffi::String& format) {
    return LoadChecked(loader, path, format);
  };
  ffi::Function::SetGlobal(kLoader, ffi::Function::FromTyped(load), true);
}

}  // namespace
}  // namespace tvm_byoc_dnnl
