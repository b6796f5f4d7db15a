// SPDX-License-Identifier: Apache-2.0
#include "runtime/module.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/engine.h"
#include "common/support/error.h"
#include "common/support/json.h"
#include "native/saved_region.h"
#include "runtime/arguments.h"
#include "runtime/cache.h"
#include "runtime/guarded.h"

namespace tvm_byoc_dnnl {
namespace {

/// Whether calls of this thread make the plan of each new size, as Runner.warm_up demands.
thread_local bool makes_plans = false;

class RegionModule final : public ffi::ModuleObj {
 public:
  explicit RegionModule(Artifact artifact) : region_(std::move(artifact)) {}

  const char* kind() const final { return "dnnl_byoc"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::String InspectSource(const ffi::String&) const final {
    return region_.artifact().graph_json;
  }
  ffi::Bytes SaveToBytes() const final {
    return ffi::Bytes(
        Save(region_.artifact(), WriterName() + " with " + region_.engine().Version()));
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    // The functions keep the module alive.
    ffi::ObjectPtr<RegionModule> self = ffi::GetObjectPtr<RegionModule>(this);
    if (name == region_.artifact().symbol) {
      return ffi::Function::FromPacked([self](ffi::PackedArgs args, ffi::Any*) {
        GuardedFromForks([&] { self->Call(args, nullptr); });
      });
    }
    if (name == "__init_" + region_.artifact().symbol) {
      return ffi::Function::FromTyped([self](const ffi::Array<ffi::Tensor>& constants) {
        GuardedFromForks([&] { self->Initialise(constants); });
        return 0;
      });
    }
    if (const Growth::Cache* cache = CacheOf(name)) {
      return ffi::Function::FromPacked([self, cache](ffi::PackedArgs args, ffi::Any* result) {
        *result = GuardedFromForks([&] { return self->MemoryFor(*cache, args); });
      });
    }
    if (name == "caches") {  // the arguments of each: the rows so far, these with the new ones, and
                             // what `MemoryFor` takes beside them
      return ffi::Function::FromTyped([self]() {
        const size_t inputs = self->region_.graph().inputs.size();
        ffi::Array<ffi::Shape> caches;
        if (const auto& growth = self->region_.region().growth()) {
          for (const Growth::Cache& cache : growth->caches) {
            Dims positions = {cache.input, static_cast<int64_t>(inputs) + cache.output};
            if (cache.starts >= 0) positions.insert(positions.end(), {cache.starts, cache.ends});
            caches.push_back(ffi::Shape(positions.begin(), positions.end()));
          }
        }
        return caches;
      });
    }
    if (name == "get_symbol") {
      return ffi::Function::FromTyped(
          [self]() { return ffi::String(self->region_.artifact().symbol); });
    }
    if (name == "get_const_vars") {
      return ffi::Function::FromTyped([self]() {
        ffi::Array<ffi::String> names;
        for (const std::string& n : self->region_.artifact().const_names)
          names.push_back(ffi::String(n));
        return names;
      });
    }
    if (name == "describe") {
      return ffi::Function::FromPacked([self](ffi::PackedArgs args, ffi::Any* result) {
        *result = GuardedFromForks([&] { return self->Describe(args); });
      });
    }
    if (name == "plans") {  // counters of the plans, and of the calls
      return ffi::Function::FromTyped([self]() { return ffi::String(self->region_.Counters()); });
    }
    if (name == "profile") {
      return ffi::Function::FromPacked([self](ffi::PackedArgs args, ffi::Any* result) {
        json::Object report;
        GuardedFromForks([&] { self->Call(args, &report); });
        *result = ffi::String(json::Value(std::move(report)).Dump());
      });
    }
    return std::nullopt;
  }

 private:
  void Initialise(const ffi::Array<ffi::Tensor>& tensors) {
    const Graph& graph = region_.graph();
    if (tensors.size() != graph.constants.size()) {
      Fail(ErrorKind::kInput, graph.name, ": got ", tensors.size(), " constants, expected ",
           graph.constants.size());
    }
    std::vector<ConstantData> constants;
    for (size_t i = 0; i < graph.constants.size(); ++i) {
      const Tensor& expected = graph.tensors[graph.constants[i].tensor];
      ffi::Tensor tensor = tensors[i];
      const DLTensor& raw = *tensor.GetDLTensorPtr();
      ArgumentName name{graph, "constant", i, expected};
      void* data = CheckTensor(raw, name);
      CheckShape(raw, KnownDims(expected.shape), name);
      constants.push_back({data, std::make_shared<ffi::Tensor>(tensor)});
    }
    region_.Initialise(std::move(constants));
  }

  [[noreturn]] void FailNotInitialised() const {
    throw ffi::Error(
        "RuntimeError",
        Cat(region_.artifact().symbol, ": called before its constants were set: call __init_",
            region_.artifact().symbol, " first (TVM's const_loader does)"),
        "");
  }

  const DLTensor& TensorArg(const ffi::PackedArgs& args, size_t index, const char* role,
                            size_t number, const Tensor& expected) const {
    std::optional<DLTensor*> tensor = args[static_cast<int>(index)].try_cast<DLTensor*>();
    if (!tensor || *tensor == nullptr) {
      Fail(ErrorKind::kInput, ArgumentName{region_.graph(), role, number, expected}(),
           " is not a tensor but ", args[static_cast<int>(index)].GetTypeKey());
    }
    return **tensor;
  }

  /// inputs…, outputs… in order; with a report, measures the steps.
  void Call(const ffi::PackedArgs& args, json::Object* report) {
    const Graph& graph = region_.graph();
    const size_t expected = graph.inputs.size() + graph.outputs.size();
    if (static_cast<size_t>(args.size()) != expected) {
      Fail(ErrorKind::kInput, graph.name, ": got ", args.size(), " arguments, expected ", expected,
           " (", graph.inputs.size(), " inputs and ", graph.outputs.size(), " outputs)");
    }
    int64_t capacity = 0;
    const std::vector<bool> caches = GrowingCaches(args, &capacity);
    std::vector<void*> inputs(graph.inputs.size());
    std::vector<const DLTensor*> tensors(graph.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph.inputs[i].tensor < 0) continue;
      const Tensor& tensor = graph.tensors[graph.inputs[i].tensor];
      tensors[i] = &TensorArg(args, i, "argument", i, tensor);
      if (caches[i]) {
        CheckKind(*tensors[i], {graph, "argument", i, tensor});  // its rows are in the output
      } else {
        inputs[i] = CheckTensor(*tensors[i], {graph, "argument", i, tensor});
      }
    }
    const std::vector<int64_t> symbols = Symbols(args, tensors);
    int64_t length = 0;
    const bool whole = makes_plans || report != nullptr;
    std::shared_ptr<const Plan> plan = PlanFor(symbols, capacity, whole, &length);
    auto shape_of = [&](int id) {
      return length > 0 ? Evaluate(graph.tensors[id].shape, symbols) : plan->shapes()[id];
    };
    for (size_t i = 0; i < inputs.size(); ++i) {
      int id = graph.inputs[i].tensor;
      if (id < 0) continue;
      CheckShape(*tensors[i], shape_of(id), {graph, "argument", i, graph.tensors[id]});
    }
    std::vector<void*> outputs(graph.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      int id = graph.outputs[i];
      ArgumentName name{graph, "output", i, graph.tensors[id]};
      const DLTensor& tensor = TensorArg(args, inputs.size() + i, name.role, i, graph.tensors[id]);
      if (caches[inputs.size() + i]) {
        outputs[i] = DataOf(tensor);
      } else {
        outputs[i] = CheckTensor(tensor, name);
      }
      CheckShape(tensor, shape_of(id), name);
    }
    CheckAliases(inputs, outputs, plan->shapes());
    if (length > 0) inputs.push_back(&length);
    if (report != nullptr) {
      *report = plan->Profile(graph, inputs, outputs);
    } else if (makes_plans) {
      plan->Run(inputs, outputs);
    } else {
      region_.Run(*plan, inputs, outputs,
                  [&] { return PlanFor(symbols, capacity, whole, &length); });
    }
  }

  /// An input that an output is written over is the memory of that output.
  void CheckAliases(const std::vector<void*>& inputs, const std::vector<void*>& outputs,
                    const Shapes& shapes) const {
    const Graph& graph = region_.graph();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& [tensor, alias, shape] = graph.inputs[i];
      if (alias < 0 || inputs[i] == outputs[alias] || ElementCount(shapes[tensor]) == 0) continue;
      Fail(ErrorKind::kInput, ArgumentName{graph, "argument", i, graph.tensors[tensor]}(),
           " is updated in place, but output ", alias, " is other memory: pass one tensor as both");
    }
  }

  /// The cache whose memory the function of this name gives: `<symbol>_cache_<number>`.
  const Growth::Cache* CacheOf(const std::string& name) const {
    if (!region_.region().growth()) return nullptr;
    const auto& caches = region_.region().growth()->caches;
    for (size_t i = 0; i < caches.size(); ++i) {
      if (name == Cat(region_.artifact().symbol, "_cache_", i)) return &caches[i];
    }
    return nullptr;
  }

  /// Memory for an output that is a cache. Arguments: the rows that it has so far, its shape, and
  /// where the new rows of each sequence begin and its own rows end, if the cache has such inputs.
  ffi::Tensor MemoryFor(const Growth::Cache& cache, const ffi::PackedArgs& args) const {
    const Graph& graph = region_.graph();
    if (args.size() != (cache.starts < 0 ? 2 : 4)) {
      Fail(ErrorKind::kInput, graph.name, ": a cache got ", args.size(), " arguments");
    }
    const Tensor& input = graph.tensors[graph.inputs[cache.input].tensor];
    const ArgumentName name{graph, "argument", static_cast<size_t>(cache.input), input};
    const DLTensor* past = &TensorArg(args, 0, "argument", cache.input, input);
    const ffi::Shape shape = args[1].cast<ffi::Shape>();
    CheckKind(*past, name);
    const Dims result(shape.begin(), shape.end());
    if (result.size() != input.shape.size()) {
      Fail(ErrorKind::kInput, name(), " has rank ", input.shape.size(), ", the cache ",
           result.size());
    }
    Dims rows = result;
    rows[cache.axis] = std::min(past->shape[cache.axis], result[cache.axis]);
    CheckShape(*past, rows, name);
    NewRows new_rows{{rows[cache.axis]}, {result[cache.axis]}};
    if (cache.starts >= 0) {
      new_rows = {Places(args, 2, cache.starts, result[0]), Places(args, 3, cache.ends, result[0])};
      for (int64_t& end : new_rows.ends)
        end = std::max<int64_t>(0, std::min(end, result[cache.axis]));
    }
    return GrowCache(*past, result, cache.axis, new_rows);
  }

  /// The numbers of an input, one for each sequence.
  Dims Places(const ffi::PackedArgs& args, size_t index, int input, int64_t sequences) const {
    const Graph& graph = region_.graph();
    const Tensor& expected = graph.tensors[graph.inputs[input].tensor];
    const ArgumentName name{graph, "argument", static_cast<size_t>(input), expected};
    const DLTensor& tensor = TensorArg(args, index, name.role, input, expected);
    const auto* places = static_cast<const int64_t*>(CheckTensor(tensor, name));
    CheckShape(tensor, {sequences}, name);
    return Dims(places, places + sequences);
  }

  /// Of inputs and outputs, those that are caches in buffers with room for equally many rows; none
  /// if one is not, and the capacity is 0.
  std::vector<bool> GrowingCaches(const ffi::PackedArgs& args, int64_t* capacity) const {
    const size_t inputs = region_.graph().inputs.size();
    std::vector<bool> none(args.size(), false), result = none;
    int64_t room = 0;
    if (!region_.region().growth()) return none;
    for (const Growth::Cache& cache : region_.region().growth()->caches) {
      const size_t output = inputs + cache.output;
      std::optional<DLTensor*> tensor = args[static_cast<int>(output)].try_cast<DLTensor*>();
      const int64_t rows = tensor && *tensor != nullptr ? CacheRows(**tensor, cache.axis) : 0;
      if (rows == 0 || (room != 0 && rows != room)) return none;
      room = rows;
      result[cache.input] = result[output] = true;
    }
    *capacity = room;
    return result;
  }

  std::vector<int64_t> Symbols(const ffi::PackedArgs& args,
                               const std::vector<const DLTensor*>& tensors) const {
    if (region_.graph().IsStatic()) return {};
    std::vector<Dims> shapes;
    for (size_t i = 0; i < tensors.size(); ++i) {
      shapes.push_back(tensors[i] != nullptr ? ShapeOf(*tensors[i]) : ShapeArg(args, i));
    }
    return BindSymbols(region_.graph(), shapes);
  }

  /// The plan for these sizes (`whole`: not plans of smaller batches); with caches in buffers, one
  /// for all lengths that these have room for, and the length.
  std::shared_ptr<const Plan> PlanFor(const std::vector<int64_t>& symbols, int64_t capacity,
                                      bool whole, int64_t* length) {
    std::shared_ptr<const Plan> plan;
    if (capacity > 0) {
      *length = Evaluate(region_.region().growth()->length, symbols);
      plan = region_.region().GrowingPlanFor(symbols, capacity);
    } else {
      plan = region_.PlanToRun(symbols, whole);
    }
    if (plan == nullptr) FailNotInitialised();
    return plan;
  }

  Dims ShapeArg(const ffi::PackedArgs& args, size_t index) const {
    std::optional<ffi::Shape> shape = args[static_cast<int>(index)].try_cast<ffi::Shape>();
    if (!shape) {
      Fail(ErrorKind::kInput, region_.graph().name, ": argument ", index, " is not a shape but ",
           args[static_cast<int>(index)].GetTypeKey());
    }
    return Dims(shape->begin(), shape->end());
  }

  /// The static plan, or that of a symbolic graph for the given shapes (one per input).
  ffi::String Describe(const ffi::PackedArgs& args) {
    const Graph& graph = region_.graph();
    const size_t expected = graph.IsStatic() ? 0 : graph.inputs.size();
    if (static_cast<size_t>(args.size()) != expected) {
      Fail(ErrorKind::kInput, graph.name, ": describe got ", args.size(), " shapes, expected ",
           expected);
    }
    std::shared_ptr<const Plan> plan = region_.region().StaticPlan();
    if (!graph.IsStatic()) {
      std::vector<Dims> shapes;
      for (size_t i = 0; i < expected; ++i) shapes.push_back(ShapeArg(args, i));
      plan = region_.region().PlanFor(shapes);
    }
    if (plan == nullptr) FailNotInitialised();
    return json::Value(plan->Describe(graph)).Dump();
  }

  SavedRegion region_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def(
      "ffi.Module.load_from_bytes.dnnl_byoc", [](const ffi::Bytes& bytes) {
        return Guarded(
            [&] { return NewRegionModule(Load(std::string_view(bytes.data(), bytes.size()))); });
      });
}

}  // namespace

ffi::Module NewRegionModule(Artifact artifact) {
  return ffi::Module(ffi::make_object<RegionModule>(std::move(artifact)));
}

bool MakePlans(bool make) { return std::exchange(makes_plans, make); }

std::string WriterName() { return Cat("tvm-byoc-dnnl ", TVM_BYOC_DNNL_VERSION); }

}  // namespace tvm_byoc_dnnl
