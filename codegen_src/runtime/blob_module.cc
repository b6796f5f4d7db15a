// SPDX-License-Identifier: Apache-2.0
// A region as bytes of a vendor's library, which functions of the vendor's package open and run; in
// a program without Python its runner in C does.
//
// The package is looked for when the module's function is fetched, which TVM's VM does when it is
// made: what is missing or does not fit is an error of loading, and not one of the first call.
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/graph.h"
#include "common/support/error.h"
#include "native/blob_runner.h"
#include "runtime/arguments.h"
#include "runtime/guarded.h"
#include "runtime/module.h"

namespace tvm_byoc_dnnl {
namespace {

/// The function that Python registers: (compiler, symbol, compatibility, bytes, results) ->
/// suffix -> function.
constexpr const char* kOpen = "tvm_byoc_dnnl.OpenBlob";

/// What follows the region's name in the names of its functions: the region, and copies to the
/// memory of its device and back.
constexpr std::string_view kSuffixes[] = {"", ".copy_in", ".copy_out"};

/// A tensor as a runner in C sees it.
tvm_byoc_tensor TensorOf(const DLTensor& tensor) {
  for (int i = TVM_BYOC_FLOAT32; i <= TVM_BYOC_INT64; ++i) {
    if (!IsStoredAs(static_cast<DType>(i), tensor.dtype.code, tensor.dtype.bits)) continue;
    return {DataOf(tensor), i, tensor.ndim, tensor.shape};
  }
  throw std::runtime_error(Cat("tvm_byoc_runner.h has no dtype for a tensor of ",
                               static_cast<int>(tensor.dtype.bits), " bits and DLPack's code ",
                               static_cast<int>(tensor.dtype.code)));
}

tvm_byoc_tensor ArgumentOf(const ffi::AnyView& value) {
  if (auto shape = value.try_cast<ffi::Shape>()) {
    // The object is alive while the caller has it.
    return {nullptr, TVM_BYOC_SHAPE, static_cast<int32_t>(shape->size()),
            const_cast<int64_t*>(shape->data())};
  }
  return TensorOf(*value.cast<DLTensor*>());
}

/// The function of a region that a runner in C has opened; `where` stands before its errors.
ffi::Function RegionIn(const tvm_byoc_runner& runner, std::string_view bytes,
                       const std::string& options, const std::string& where) {
  auto opened = std::make_shared<const OpenedBlob>(runner, bytes, options);
  return ffi::Function::FromPacked([opened, where](ffi::PackedArgs args, ffi::Any*) {
    Guarded([&] {
      std::vector<tvm_byoc_tensor> tensors;
      for (int i = 0; i < args.size(); ++i) tensors.push_back(ArgumentOf(args[i]));
      try {
        opened->Run(tensors);
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(Cat(where, error.what()));
      }
    });
  });
}

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
    auto made = open ? (*open)(blob_.compiler, blob_.symbol, blob_.compatibility,
                               ffi::Bytes(blob_.bytes), blob_.results)
                           .cast<Functions>()
                     : WithoutPython();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!opened_) opened_ = std::move(made);
    return *opened_;
  }

  /// Opened by the vendor's runner in C, whose library is found by the compiler's name.
  Functions WithoutPython() const {
    const std::string where = Cat("region ", blob_.symbol, " of compiler ", blob_.compiler);
    const tvm_byoc_runner* runner = nullptr;
    try {
      runner = &LoadRunner(RunnerLibrary(blob_.compiler));
    } catch (const Error& error) {
      Fail(ErrorKind::kArtifact, "region ", blob_.symbol, " needs the Python package of compiler ",
           blob_.compiler, ", or its runner in C: load this library in Python, or build the model ",
           "without ", blob_.compiler, "; ", error.what());
    }
    std::string reason;
    if (CheckBlob(*runner, blob_.compatibility, &reason) == TVM_BYOC_REFUSED) {
      Fail(ErrorKind::kArtifact, where, " was compiled for another setting: ", reason,
           "; compile the model again here");
    }
    try {
      return {{"", RegionIn(*runner, blob_.bytes, "{}", where + ": run: ")}};
    } catch (const std::runtime_error& error) {
      Fail(ErrorKind::kArtifact, where, " cannot be loaded: ", error.what(),
           "; compile the model again here");
    }
  }

  const Blob blob_;
  std::mutex mutex_;
  std::optional<Functions> opened_;
};

ffi::Module Make(Blob blob) { return ffi::Module(ffi::make_object<BlobModule>(std::move(blob))); }

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

ffi::Tuple<int64_t, ffi::String> RunnerCheck(const ffi::String& library,
                                             const ffi::String& compatibility) {
  std::string reason;
  const int64_t fit = CheckBlob(LoadRunner(library), compatibility, &reason);
  return ffi::Tuple<int64_t, ffi::String>(fit, reason);
}

ffi::Function RunnerLoad(const ffi::String& library, const ffi::Bytes& bytes,
                         const ffi::String& options) {
  return RegionIn(LoadRunner(library), {bytes.data(), bytes.size()}, options, "");
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("ffi.Module.load_from_bytes.byoc_blob",
           [](const ffi::Bytes& bytes) {
             return Guarded(
                 [&] { return Make(LoadBlob(std::string_view(bytes.data(), bytes.size()))); });
           })
      .def("tvm_byoc_dnnl.BlobModuleCreate",
           [](const ffi::String& symbol, const ffi::String& compiler,
              const ffi::String& compatibility,
              const ffi::Bytes& bytes) { return Make({symbol, compiler, compatibility, bytes}); })
      .def("tvm_byoc_dnnl.RunnerCheck", Door(RunnerCheck))
      .def("tvm_byoc_dnnl.RunnerLoad", Door(RunnerLoad))
      .def("tvm_byoc_dnnl.BlobNamed", Door(Named));
}

}  // namespace
}  // namespace tvm_byoc_dnnl
