// SPDX-License-Identifier: Apache-2.0
// A region as bytes of a vendor's library, which functions of the vendor's package open and run.
//
// The package is looked for when the module's function is fetched, which TVM's VM does when it is
// made: what is missing or does not fit is an error of loading, and not one of the first call.
#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/artifact.h"
#include "common/support/error.h"
#include "runtime/guarded.h"
#include "runtime/version.h"

namespace tvm_byoc_dnnl {
namespace {

namespace ffi = tvm::ffi;

/// The function that Python registers: (compiler, symbol, compatibility, bytes, results) ->
/// suffix -> function.
constexpr const char* kOpen = "tvm_byoc_dnnl.OpenBlob";

/// What follows the region's name in the names of its functions: the region, and copies to the
/// memory of its device and back.
constexpr std::string_view kSuffixes[] = {"", ".copy_in", ".copy_out"};

class BlobModule final : public ffi::ModuleObj {
 public:
  explicit BlobModule(Blob blob) : blob_(std::move(blob)) {}

  const char* kind() const final { return "byoc_blob"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(Save(blob_, WriterName())); }
  bool ImplementsFunction(const ffi::String& name) final { return SuffixOf(name).has_value(); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    std::optional<std::string_view> suffix = SuffixOf(name);
    if (!suffix) return std::nullopt;
    return Guarded([&] {
      const Functions opened = Opened();
      auto found = opened.find(ffi::String(std::string(*suffix)));
      if (found == opened.end()) {
        Fail(ErrorKind::kArtifact, "region ", blob_.symbol,
             " keeps its results in the memory of a ", "device, and the package of compiler ",
             blob_.compiler, " has none: its register_namespace has no memory=");
      }
      return (*found).second;
    });
  }

  const Blob& blob() const { return blob_; }

 private:
  using Functions = ffi::Map<ffi::String, ffi::Function>;

  std::optional<std::string_view> SuffixOf(const ffi::String& name) const {
    const std::string_view whole(name.data(), name.size());
    if (whole.substr(0, blob_.symbol.size()) != blob_.symbol) return std::nullopt;
    for (std::string_view suffix : kSuffixes) {
      if (whole.substr(blob_.symbol.size()) == suffix) return suffix;
    }
    return std::nullopt;
  }

  /// Without the lock while the package works, because that may wait for a lock of the host's
  /// language; of two threads that come first, one opens the bytes in vain.
  Functions Opened() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (opened_) return *opened_;
    }
    std::optional<ffi::Function> open = ffi::Function::GetGlobal(kOpen);
    if (!open) {
      Fail(ErrorKind::kArtifact, "region ", blob_.symbol, " needs the Python package of compiler ",
           blob_.compiler, ": load this library in Python, or build the model without ",
           blob_.compiler);
    }
    auto made = (*open)(blob_.compiler, blob_.symbol, blob_.compatibility, ffi::Bytes(blob_.bytes),
                        blob_.results)
                    .cast<Functions>();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!opened_) opened_ = std::move(made);
    return *opened_;
  }

  const Blob blob_;
  std::mutex mutex_;
  std::optional<Functions> opened_;
};

ffi::Module Make(Blob blob);

const BlobModule& BlobIn(const ffi::Module& module) {
  const auto* known = dynamic_cast<const BlobModule*>(module.get());
  if (known == nullptr)
    Fail(ErrorKind::kInput, "a module of kind ", module->kind(), ", expected byoc_blob");
  return *known;
}

/// The same region under another name; it is known how many results it has.
ffi::Module Named(const ffi::Module& module, const ffi::String& symbol, int64_t results) {
  Blob blob = BlobIn(module).blob();
  blob.symbol = symbol;
  blob.results = results;
  return Make(std::move(blob));
}

ffi::Module Make(Blob blob) { return ffi::Module(ffi::make_object<BlobModule>(std::move(blob))); }

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("ffi.Module.load_from_bytes.byoc_blob",
           [](const ffi::Bytes& bytes) {
             return Guarded(
                 [&] { return Make(LoadBlob(std::string_view(bytes.data(), bytes.size()))); });
           })
      .def("tvm_byoc_dnnl.BlobModuleCreate",
           [](const ffi::String& symbol, const ffi::String& compiler,
              const ffi::String& compatibility,
              const ffi::Bytes& bytes) { return Make({symbol, compiler, compatibility, bytes}); })
      .def("tvm_byoc_dnnl.BlobBytes",
           [](const ffi::Module& module) {
             return Guarded([&] { return BlobIn(module).SaveToBytes(); });
           })
      .def("tvm_byoc_dnnl.BlobNamed",
           [](const ffi::Module& module, const ffi::String& symbol, int64_t results) {
             return Guarded([&] { return Named(module, symbol, results); });
           });
}

}  // namespace
}  // namespace tvm_byoc_dnnl
