// SPDX-License-Identifier: Apache-2.0
#include "native/model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "byoc_plan.h"
#include "common/graph.h"
#include "common/support/bytes.h"
#include "common/support/error.h"
#include "native/library_record.h"

namespace tvm_byoc_dnnl {
namespace {

/// Sets of sizes that are kept; to make one takes microseconds.
constexpr size_t kSizesKept = 64;

/// The constant in the mapped file, compared with its checksum; its pages go with its last user.
ConstantData ConstantIn(const ModelFile& file, const WeightsTable::Entry& entry) {
  const char* data = file.mapped->data() + file.weights + entry.offset;
  const std::shared_ptr<const void> owner(
      data,
      [keep = file.mapped, bytes = entry.bytes](const void* start) { DropPages(start, bytes); });
  if (Xxh64({data, entry.bytes}) != entry.checksum) {
    Fail(ErrorKind::kArtifact, "the model's weights are damaged: constant \"", entry.name,
         "\" has another checksum than when it was exported; export the model or copy it again");
  }
  DropPages(data, entry.bytes);
  return {data, owner};
}

void CheckConstant(const Graph& graph, const Constant& constant, const WeightsTable::Entry& entry) {
  const Tensor& tensor = graph.tensors[constant.tensor];
  if (IsStoredAs(tensor.dtype, entry.dtype_code, entry.dtype_bits) &&
      KnownDims(tensor.shape) == entry.shape)
    return;
  Fail(ErrorKind::kArtifact, graph.name, ": constant \"", entry.name, "\" of ",
       static_cast<int>(entry.dtype_bits), " bits has shape ", Join(entry.shape), ", expected ",
       Name(tensor.dtype), Join(KnownDims(tensor.shape)));
}

int64_t BytesOf(const Graph& graph, const Shapes& shapes, int value) {
  return ElementCount(shapes[value]) * SizeOf(graph.tensors[value].dtype);
}

}  // namespace

Model::Model(const ModelFile& file, int threads)
    : program_(ParseProgram(file.program)), threads_(threads) {
  const ScopedThreads scope(threads_);
  for (const Artifact& artifact : file.regions)
    regions_.push_back(std::make_unique<SavedRegion>(artifact));
  LinkCalls();
  InitialiseRegions(file);
  if (program_.graph.IsStatic()) {
    std::vector<Dims> shapes;
    for (size_t i = 0; i < program_.graph.inputs.size(); ++i)
      shapes.push_back(KnownDims(program_.graph.InputShape(static_cast<int>(i))));
    SizesFor(shapes);
  }
}

/// Finds the region of each call that has one, and in whose memory each value is: the first value
/// that another shape was given to, or the value itself.
void Model::LinkCalls() {
  const Graph& graph = program_.graph;
  for (size_t value = 0; value < graph.tensors.size(); ++value)
    homes_.push_back(static_cast<int>(value));
  for (const RegionCall& call : program_.calls) {
    if (call.region.empty()) {
      if (call.op == nullptr) homes_[call.outputs[0]] = homes_[call.inputs[0].tensor];
      called_.push_back(nullptr);
      continue;
    }
    const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const auto& region) {
      return region->artifact().symbol == call.region;
    });
    if (found == regions_.end())
      Fail(ErrorKind::kArtifact, "the file has no region ", call.region, ", which it calls");
    called_.push_back(found->get());
    const Graph& region = (*found)->graph();
    bool fits =
        region.inputs.size() == call.inputs.size() && region.outputs.size() == call.outputs.size();
    for (size_t i = 0; fits && i < call.inputs.size(); ++i) {
      const int argument = call.inputs[i].tensor, expected = region.inputs[i].tensor;
      fits = (argument < 0) == (expected < 0) && region.inputs[i].alias < 0 &&
             (argument < 0 || graph.tensors[argument].dtype == region.tensors[expected].dtype);
    }
    for (size_t i = 0; fits && i < call.outputs.size(); ++i)
      fits = graph.tensors[call.outputs[i]].dtype == region.tensors[region.outputs[i]].dtype;
    if (!fits) Fail(ErrorKind::kGraph, "program: its call of ", call.region, " does not fit it");
  }
}

void Model::InitialiseRegions(const ModelFile& file) {
  std::map<std::string, const WeightsTable::Region*> wanted;
  for (const WeightsTable::Region& region : file.table.regions) wanted[region.symbol] = &region;
  for (const auto& region : regions_) {
    const Graph& graph = region->graph();
    std::vector<ConstantData> constants;
    const auto found = wanted.find(graph.name);
    const size_t count = found == wanted.end() ? 0 : found->second->entries.size();
    if (count != graph.constants.size()) {
      Fail(ErrorKind::kArtifact, graph.name, ": the file has ", count, " constants, expected ",
           graph.constants.size());
    }
    for (size_t i = 0; i < count; ++i) {
      const WeightsTable::Entry& entry = file.table.entries[found->second->entries[i]];
      CheckConstant(graph, graph.constants[i], entry);
      constants.push_back(ConstantIn(file, entry));
    }
    region->Initialise(std::move(constants));
  }
}

void Model::Prepare(const std::vector<Dims>& inputs) {
  const ScopedThreads scope(threads_);
  const std::shared_ptr<const Sizes> sizes = SizesFor(inputs);
  for (size_t i = 0; i < program_.calls.size(); ++i) {
    if (called_[i] != nullptr) PlanOf(i, *sizes, /*whole=*/true);
  }
}

std::shared_ptr<const Model::Sizes> Model::SizesFor(const std::vector<Dims>& inputs) {
  std::vector<int64_t> symbols = BindSymbols(program_.graph, inputs);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(sizes_.begin(), sizes_.end(),
                                    [&](const auto& sizes) { return sizes->symbols == symbols; });
    if (found != sizes_.end()) {
      sizes_.splice(sizes_.begin(), sizes_, found);
      return sizes_.front();
    }
  }
  auto made = std::make_shared<const Sizes>(MakeSizes(std::move(symbols)));
  std::lock_guard<std::mutex> lock(mutex_);
  sizes_.push_front(made);
  if (sizes_.size() > kSizesKept) sizes_.pop_back();
  return made;
}

Model::Sizes Model::MakeSizes(std::vector<int64_t> symbols) const {
  Sizes sizes;
  sizes.shapes = Specialise(program_.graph, symbols);
  sizes.symbols = std::move(symbols);
  for (size_t i = 0; i < program_.calls.size(); ++i) sizes.regions.push_back(BindCall(i, sizes));
  PlaceValues(&sizes);
  return sizes;
}

/// The values of a region's symbols; checks that the program and the region have the same shapes.
std::vector<int64_t> Model::BindCall(size_t index, const Sizes& sizes) const {
  const RegionCall& call = program_.calls[index];
  const auto& shapes = sizes.shapes;
  if (call.op != nullptr) {
    std::vector<Dims> operands;
    for (const Input& input : call.inputs) operands.push_back(shapes[input.tensor]);
    if (!Fits(*call.op, operands, shapes[call.outputs[0]]))
      Fail(ErrorKind::kInput, program_.graph.name, ": ", call.op->name, " cannot make ",
           Join(shapes[call.outputs[0]]), " of ", Join(operands[0]));
    return {};
  }
  if (called_[index] == nullptr) {
    const Dims& from = shapes[call.inputs[0].tensor];
    const Dims& to = shapes[call.outputs[0]];
    if (ElementCount(from) != ElementCount(to))
      Fail(ErrorKind::kInput, program_.graph.name, ": ", Join(from), " cannot become ", Join(to));
    return {};
  }
  const Graph& region = called_[index]->graph();
  std::vector<Dims> arguments;
  for (const Input& input : call.inputs)
    arguments.push_back(input.tensor < 0 ? Evaluate(input.shape, sizes.symbols)
                                         : shapes[input.tensor]);
  std::vector<int64_t> symbols = BindSymbols(region, arguments);
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Dims expected = Evaluate(region.tensors[region.outputs[i]].shape, symbols);
    if (shapes[call.outputs[i]] == expected) continue;
    Fail(ErrorKind::kInput, region.name, ": output ", i, " has shape ", Join(expected),
         ", the model expects ", Join(shapes[call.outputs[i]]));
  }
  return symbols;
}

void Model::PlaceValues(Sizes* sizes) const {
  const Graph& graph = program_.graph;
  std::vector<Buffer>& buffers = sizes->buffers;
  for (size_t value = 0; value < graph.tensors.size(); ++value) {
    buffers.emplace_back();
    buffers.back().bytes = BytesOf(graph, sizes->shapes, static_cast<int>(value));
  }
  auto settle = [&](int value, Home home, size_t index) {
    Buffer& buffer = buffers[homes_[value]];
    if (buffer.home != Home::kArena) return;  // a caller's already
    buffer.home = home;
    buffer.index = static_cast<int>(index);
  };
  for (size_t i = 0; i < graph.inputs.size(); ++i) settle(graph.inputs[i].tensor, Home::kInput, i);
  for (size_t i = 0; i < graph.constants.size(); ++i)
    settle(graph.constants[i].tensor, Home::kConstant, i);
  for (size_t i = 0; i < graph.outputs.size(); ++i) settle(graph.outputs[i], Home::kOutput, i);
  std::vector<std::vector<int>> steps;
  for (size_t i = 0; i < program_.calls.size(); ++i) {
    const RegionCall& call = program_.calls[i];
    if (IsView(i)) continue;
    steps.emplace_back();
    for (const Input& input : call.inputs) {
      if (input.tensor >= 0) steps.back().push_back(homes_[input.tensor]);
    }
    for (int value : call.outputs) steps.back().push_back(homes_[value]);
  }
  sizes->arena = PlaceBuffers(steps, &buffers);
}

std::shared_ptr<const Plan> Model::PlanOf(size_t call, const Sizes& sizes, bool whole) const {
  return called_[call]->PlanToRun(sizes.regions[call], whole);
}

void Model::Run(const Sizes& sizes, const std::vector<void*>& inputs,
                const std::vector<void*>& outputs) {
  const ScopedThreads scope(threads_);
  Arena arena = TakeArena(sizes.arena);
  std::vector<void*> values;
  for (size_t value = 0; value < sizes.buffers.size(); ++value) {
    const Buffer& buffer = sizes.buffers[homes_[value]];
    const void* constant =
        buffer.home == Home::kConstant ? program_.constants[buffer.index].data() : nullptr;
    values.push_back(buffer.home == Home::kInput      ? inputs[buffer.index]
                     : buffer.home == Home::kOutput   ? outputs[buffer.index]
                     : buffer.home == Home::kConstant ? const_cast<void*>(constant)  // only read
                                                      : arena.data.get() + buffer.offset);
  }
  for (size_t i = 0; i < program_.calls.size(); ++i) {
    if (!IsView(i)) RunCall(i, sizes, values);
  }
  const Graph& graph = program_.graph;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int value = graph.outputs[i];
    if (values[value] != outputs[i] && sizes.buffers[value].bytes > 0)
      std::memcpy(outputs[i], values[value], static_cast<size_t>(sizes.buffers[value].bytes));
  }
  GiveBack(std::move(arena));
}

void Model::RunCall(size_t index, const Sizes& sizes, const std::vector<void*>& values) {
  const RegionCall& call = program_.calls[index];
  if (call.op != nullptr) {
    auto tensor = [&](int value) {
      return HostTensor{values[value], program_.graph.tensors[value].dtype, sizes.shapes[value]};
    };
    std::vector<HostTensor> operands;
    for (const Input& input : call.inputs) operands.push_back(tensor(input.tensor));
    return tvm_byoc_dnnl::Run(*call.op, operands, tensor(call.outputs[0]));
  }
  std::vector<void*> inputs, outputs;
  for (const Input& input : call.inputs)
    inputs.push_back(input.tensor < 0 ? nullptr : values[input.tensor]);
  for (int value : call.outputs) outputs.push_back(values[value]);
  const std::shared_ptr<const Plan> plan = PlanOf(index, sizes, /*whole=*/false);
  called_[index]->Run(*plan, inputs, outputs,
                      [&] { return PlanOf(index, sizes, /*whole=*/false); });
}

/// The spare one if it is large enough.
Model::Arena Model::TakeArena(int64_t bytes) {
  if (bytes == 0) return {};
  Arena spare;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(spare, spare_);
  }
  if (spare.bytes >= bytes) return spare;
  spare = {};
  char* data = byoc_allocate(static_cast<size_t>(bytes));
  if (data == nullptr) throw std::bad_alloc();
  return {std::shared_ptr<char>(data, [](char* memory) { byoc_free(memory); }), bytes};
}

void Model::GiveBack(Arena arena) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (arena.bytes > spare_.bytes) std::swap(arena, spare_);
}

ModelFile ReadModelFile(const std::string& path) {
  ModelFile file;
  file.mapped = MapFile(path);
  std::string_view data(file.mapped->data(), file.mapped->bytes());
  const std::vector<ByteRange> weights = WeightsIn(&data, path);
  SavedIn found;
  uint64_t start = 0;
  for (const auto& [first, end] : weights) {
    FindSaved(data.substr(start, first - start), &found);
    start = end;
  }
  FindSaved(data.substr(start), &found);
  if (found.programs.size() != 1 || found.weights.size() > 1) {
    Fail(ErrorKind::kUnsupported, "it cannot run without TVM: ",
         found.programs.empty() ? "its file does not say how its regions are called"
                                : "it is made of several models");
  }
  file.program = LoadProgram(found.programs[0]);
  for (std::string_view region : found.regions) file.regions.push_back(Load(region));
  if (found.weights.empty()) return file;
  file.table = LoadWeightsTable(found.weights[0]);
  const auto home = std::find_if(weights.begin(), weights.end(), [&](const ByteRange& range) {
    return range.second - range.first == file.table.total_bytes;
  });
  if (home == weights.end()) RefuseDamaged(path);
  file.weights = home->first;
  return file;
}

}  // namespace tvm_byoc_dnnl
