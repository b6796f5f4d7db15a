// SPDX-License-Identifier: Apache-2.0
// The constants of a model's regions, and those large ones that the host reads: TVM's const_loader,
// without its copies.
//
// In the process that built the model they are TVM's tensors. An exported library contains them as
// plain data, of any size, beside its code (see data_object.h); where it is loaded they are views
// of the mapped file, and constants that are no longer used cost no memory.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/data_object.h"
#include "common/mapped.h"
#include "common/support/bytes.h"
#include "common/support/error.h"
#include "runtime/arguments.h"
#include "runtime/guarded.h"
#include "runtime/module.h"

namespace tvm_byoc_dnnl {
namespace {

std::string_view BytesOf(const DLTensor& tensor) {
  return {DataOf(tensor), ffi::GetDataSize(tensor)};
}

/// A tensor over a part of mapped data; its pages are released together with the tensor.
class MappedAllocator {
 public:
  MappedAllocator(std::shared_ptr<const MappedData> data, uint64_t offset, uint64_t bytes)
      : data_(std::move(data)), offset_(offset), bytes_(bytes) {}
  void AllocData(DLTensor* tensor) { tensor->data = const_cast<char*>(data_->data() + offset_); }
  void FreeData(DLTensor* tensor) { DropPages(tensor->data, bytes_); }

 private:
  std::shared_ptr<const MappedData> data_;
  uint64_t offset_;
  uint64_t bytes_;
};

/// The size of a tensor in memory must be its elements': TVM packs types of less than a byte.
WeightsTable::Entry Describe(const std::string& name, const DLTensor& tensor) {
  if (tensor.dtype.lanes != 1 || tensor.device.device_type != kDLCPU ||
      !ffi::IsContiguous(tensor)) {
    Fail(ErrorKind::kInput, "constant \"", name, "\" is ", ffi::DLDataTypeToString(tensor.dtype),
         " on device type ", static_cast<int>(tensor.device.device_type),
         ", expected a dense tensor of scalars on the CPU");
  }
  WeightsTable::Entry entry;
  entry.name = name;
  entry.dtype_code = static_cast<uint8_t>(tensor.dtype.code);
  entry.dtype_bits = static_cast<uint8_t>(tensor.dtype.bits);
  entry.shape = ShapeOf(tensor);
  entry.bytes = ffi::GetDataSize(tensor);
  return entry;
}

/// Weights before export. Their checksums are for the exported file: to compute them takes as long
/// as to read all weights, so that waits until someone exports.
class StoredWeights {
 public:
  StoredWeights(WeightsTable table, ffi::Array<ffi::Tensor> tensors)
      : table_(std::move(table)), tensors_(std::move(tensors)) {}

  const WeightsTable& table() const { return table_; }
  /// In the order of the table.
  const ffi::Array<ffi::Tensor>& tensors() const { return tensors_; }

  /// The table with the checksums of the tensors as they are now.
  WeightsTable WithChecksums() const {
    WeightsTable table = table_;
    for (size_t i = 0; i < table.entries.size(); ++i)
      table.entries[i].checksum = Xxh64(BytesOf(*tensors_[i].GetDLTensorPtr()));
    return table;
  }

  /// Sets the offsets of entries.
  static void Place(WeightsTable& table) {
    std::vector<uint64_t> sizes;
    for (const WeightsTable::Entry& entry : table.entries) sizes.push_back(entry.bytes);
    const std::vector<uint64_t> offsets = PartOffsets(sizes);
    for (size_t i = 0; i < sizes.size(); ++i) table.entries[i].offset = offsets[i];
    table.total_bytes = offsets.back();
  }

 private:
  const WeightsTable table_;
  const ffi::Array<ffi::Tensor> tensors_;
};

/// The data of the weights as an object file, for export_library to link.
class WeightsDataModule final : public ffi::ModuleObj {
 public:
  explicit WeightsDataModule(std::shared_ptr<const StoredWeights> stored)
      : stored_(std::move(stored)) {}

  const char* kind() const final { return "byoc_weights_data"; }
  int GetPropertyMask() const final {
    return ffi::Module::kRunnable | ffi::Module::kCompilationExportable;
  }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final { return std::nullopt; }
  ffi::Array<ffi::String> GetWriteFormats() const final { return {"o"}; }

  void WriteToFile(const ffi::String& path, const ffi::String&) const final {
    Guarded([&] {
      std::vector<std::string_view> parts;
      for (ffi::Tensor tensor : stored_->tensors())
        parts.push_back(BytesOf(*tensor.GetDLTensorPtr()));
      WriteDataObject(path, stored_->WithChecksums().DataSymbol(), parts);
    });
  }

 private:
  std::shared_ptr<const StoredWeights> stored_;
};

class WeightsModule final : public ffi::ModuleObj {
 public:
  /// Before export: the tensors as they are.
  explicit WeightsModule(std::shared_ptr<const StoredWeights> stored)
      : table_(stored->table()), stored_(std::move(stored)) {
    Index();
  }

  /// After loading: the data is in the library that these bytes came from.
  explicit WeightsModule(WeightsTable table) : table_(std::move(table)) {
    const std::string symbol = table_.DataSymbol();
    copies_ = FindMapped(symbol);
    if (copies_.empty()) {
      Fail(ErrorKind::kArtifact, "the model's weights are not there: no library of this process ",
           "exports ", symbol, "; load the file that export_library wrote, not stripped of its ",
           "dynamic symbols");
    }
    for (const auto& copy : copies_) {
      if (copy->bytes() == table_.total_bytes) continue;
      Fail(ErrorKind::kArtifact, "the model's weights are damaged: ", symbol, " has ",
           copy->bytes(), " bytes, expected ", table_.total_bytes);
    }
    Index();
  }

  const char* kind() const final { return "byoc_weights"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Bytes SaveToBytes() const final {
    return ffi::Bytes(Save(stored_ ? stored_->WithChecksums() : table_, WriterName()));
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (auto found = regions_.find(name); found != regions_.end()) {
      return Guarded([&] { return RegionFunction(table_.regions[found->second]); });
    }
    if (auto found = getters_.find(name); found != getters_.end()) {
      const uint32_t entry = found->second;
      ffi::ObjectPtr<WeightsModule> self = ffi::GetObjectPtr<WeightsModule>(this);
      return ffi::Function::FromTyped(
          [self, entry]() { return Guarded([&] { return self->Shared(entry); }); });
    }
    return std::nullopt;
  }

  bool ImplementsFunction(const ffi::String& name) final {
    return regions_.count(name) != 0 || getters_.count(name) != 0;
  }

 private:
  void Index() {
    for (size_t i = 0; i < table_.regions.size(); ++i) regions_[table_.regions[i].symbol] = i;
    for (const WeightsTable::Getter& getter : table_.getters)
      getters_[getter.symbol] = getter.entry;
  }

  /// A region's function; its constants are set the first time, as TVM's const_loader does.
  ffi::Function RegionFunction(const WeightsTable::Region& region) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (initialised_.count(region.symbol) == 0) {
      ffi::Array<ffi::Tensor> constants;
      for (uint32_t entry : region.entries) constants.push_back(View(entry));
      Imported("__init_" + region.symbol)(std::move(constants));
      initialised_.insert(region.symbol);
    }
    return Imported(region.symbol);
  }

  ffi::Function Imported(const std::string& name) {
    for (const ffi::Any& module : imports()) {
      ffi::Optional<ffi::Function> function = module.cast<ffi::Module>()->GetFunction(name);
      if (function.has_value()) return function.value();
    }
    Fail(ErrorKind::kArtifact, "the library has weights for ", name, ", but no such function");
  }

  ffi::Tensor Shared(uint32_t entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [found, added] = shared_.try_emplace(entry);
    if (added) {
      try {
        found->second = View(entry);
      } catch (...) {
        shared_.erase(found);
        throw;
      }
    }
    return *found->second;
  }

  /// The first of the copies in which the entry has its checksum.
  static std::optional<ffi::Tensor> SoundView(
      const WeightsTable::Entry& entry,
      const std::vector<std::shared_ptr<const MappedData>>& copies) {
    for (const auto& copy : copies) {
      if (entry.offset + entry.bytes > copy->bytes()) continue;
      const std::string_view data(copy->data() + entry.offset, entry.bytes);
      const bool sound = Xxh64(data) == entry.checksum;
      DropPages(data.data(), data.size());
      if (!sound) continue;
      DLDataType dtype{entry.dtype_code, entry.dtype_bits, 1};
      return ffi::Tensor::FromNDAlloc(MappedAllocator(copy, entry.offset, entry.bytes),
                                      ffi::ShapeView(entry.shape.data(), entry.shape.size()), dtype,
                                      DLDevice{kDLCPU, 0});
    }
    return std::nullopt;
  }

  ffi::Tensor View(uint32_t index) {
    if (stored_) return stored_->tensors()[index];
    const WeightsTable::Entry& entry = table_.entries[index];
    if (auto found = SoundView(entry, copies_)) return *found;
    // Another library with the same data may be whole; only then it is kept, too.
    if (auto found = SoundView(entry, FindMapped(table_.DataSymbol()))) return *found;
    Fail(ErrorKind::kArtifact, "the model's weights are damaged: constant \"", entry.name,
         "\" has another checksum than when it was exported; export the model or copy it again");
  }

  const WeightsTable table_;
  std::shared_ptr<const StoredWeights> stored_;  // before export
  // After loading. Of libraries with the same data, any may be the one that these bytes are from.
  std::vector<std::shared_ptr<const MappedData>> copies_;
  std::map<std::string, size_t> regions_;                  // by symbol
  std::map<std::string, uint32_t> getters_;                // by symbol
  std::mutex mutex_;                                       // guards the members below
  std::set<std::string> initialised_;                      // symbols of regions
  std::map<uint32_t, std::optional<ffi::Tensor>> shared_;  // entries that the host reads
};

/// Whether two entries would be read alike.
bool SameType(const WeightsTable::Entry& a, const WeightsTable::Entry& b) {
  return a.bytes == b.bytes && a.dtype_code == b.dtype_code && a.dtype_bits == b.dtype_bits &&
         a.shape == b.shape;
}

/// A module around `modules`: constants by name, the names that each region wants in order, and
/// functions that return one constant.
ffi::Module CreateWeights(const ffi::Array<ffi::String>& names,
                          const ffi::Array<ffi::Tensor>& tensors,
                          const ffi::Map<ffi::String, ffi::Array<ffi::String>>& regions,
                          const ffi::Map<ffi::String, ffi::String>& getters,
                          const ffi::Array<ffi::Module>& modules) {
  WeightsTable table;
  std::map<std::string, uint32_t> index;
  ffi::Array<ffi::Tensor> stored;
  for (size_t i = 0; i < names.size(); ++i) {
    WeightsTable::Entry described = Describe(names[i], *tensors[i].GetDLTensorPtr());
    const auto same = std::find_if(
        table.entries.begin(), table.entries.end(), [&](const WeightsTable::Entry& other) {
          return SameType(described, other) &&
                 BytesOf(*tensors[i].GetDLTensorPtr()) ==
                     BytesOf(*stored[&other - table.entries.data()].GetDLTensorPtr());
        });
    index[names[i]] = static_cast<uint32_t>(same - table.entries.begin());
    if (same != table.entries.end()) continue;  // tied weights are stored once
    table.entries.push_back(std::move(described));
    stored.push_back(tensors[i]);
  }
  StoredWeights::Place(table);
  auto entry = [&](const std::string& name) {
    auto found = index.find(name);
    if (found == index.end()) Fail(ErrorKind::kInput, "no constant is named \"", name, "\"");
    return found->second;
  };
  for (const auto& [symbol, wanted] : regions) {
    WeightsTable::Region region{symbol, {}};
    for (const ffi::String& name : wanted) region.entries.push_back(entry(name));
    table.regions.push_back(std::move(region));
  }
  for (const auto& [symbol, name] : getters) table.getters.push_back({symbol, entry(name)});

  auto kept = std::make_shared<const StoredWeights>(std::move(table), std::move(stored));
  ffi::Module data(ffi::make_object<WeightsDataModule>(kept));
  ffi::Module weights(ffi::make_object<WeightsModule>(kept));
  weights->ImportModule(data);
  for (const ffi::Module& module : modules) weights->ImportModule(module);
  return weights;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("ffi.Module.load_from_bytes.byoc_weights",
           [](const ffi::Bytes& bytes) {
             return Guarded([&] {
               return ffi::Module(ffi::make_object<WeightsModule>(
                   LoadWeightsTable(std::string_view(bytes.data(), bytes.size()))));
             });
           })
      .def("tvm_byoc_dnnl.WeightsModuleCreate", Door(CreateWeights))
      .def("tvm_byoc_dnnl.Checksum", [](const ffi::Tensor& dense) {
        return static_cast<int64_t>(Xxh64(BytesOf(*dense.GetDLTensorPtr())));
      });
}

}  // namespace
}  // namespace tvm_byoc_dnnl
