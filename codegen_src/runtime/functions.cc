// SPDX-License-Identifier: Apache-2.0
// The functions that Python calls.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/artifact.h"
#include "common/engine.h"
#include "common/graph.h"
#include "common/pace.h"
#include "common/support/each.h"
#include "common/support/error.h"
#include "common/support/json.h"
#include "native/threads.h"
#include "runtime/cache.h"
#include "runtime/guarded.h"
#include "runtime/module.h"
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {
namespace {

/// Whether an engine runs every node of each of several graphs; see Engine::Probe. Of several, one
/// about which the engine throws has an empty answer: whoever asks about it alone gets the error.
ffi::Array<ffi::String> Probe(const ffi::String& engine, const ffi::Array<ffi::String>& graphs) {
  const Engine& asked = FindEngine(engine);
  const std::vector<std::string> documents(graphs.begin(), graphs.end());
  std::vector<ffi::String> answers(documents.size());
  const auto ask = [&](size_t i) {
    answers[i] = json::Value(asked.Probe(ParseGraph(documents[i]))).Dump();
  };
  if (documents.size() == 1) ask(0);
  ForEach(documents.size() == 1 ? 0 : documents.size(), [&](size_t i) {
    try {
      ask(i);
    } catch (...) {  // the answer stays empty
    }
  });
  return ffi::Array<ffi::String>(answers.begin(), answers.end());
}

/// A static graph as source, a function of TVM or stand-alone; the names of its constants are
/// checked as for a module.
ffi::String Emit(const ffi::String& engine, const ffi::String& graph_json,
                 const ffi::Array<ffi::String>& const_names, bool as_function) {
  const Graph graph = ParseGraph({graph_json.data(), graph_json.size()});
  if (!graph.IsStatic()) {
    Fail(ErrorKind::kUnsupported, graph.name, ": shapes depend on ", Join(graph.symbols),
         ", expected static ones to emit source: give them values first");
  }
  CheckConstants(graph, {const_names.begin(), const_names.end()});
  return FindEngine(engine).Emit(graph, as_function);
}

/// Measures what an engine can choose from in a static graph.
ffi::String MeasureCandidates(const ffi::String& engine, const ffi::String& graph_json,
                              int rounds) {
  const Graph graph = ParseGraph({graph_json.data(), graph_json.size()});
  const KnownTimes times = FindEngine(engine).MeasureCandidates(graph, rounds);
  return json::Value(WriteKnownTimes(times)).Dump();
}

/// What the choice of an engine in a static graph follows from.
ffi::String DescribeCosts(const ffi::String& engine, const ffi::String& graph_json) {
  const Graph graph = ParseGraph({graph_json.data(), graph_json.size()});
  return json::Value(FindEngine(engine).DescribeCosts(graph)).Dump();
}

ffi::String EngineInfo(const ffi::String& engine) {
  return json::Value(FindEngine(engine).Info()).Dump();
}

ffi::Module Create(const ffi::String& engine, const ffi::String& symbol,
                   const ffi::String& graph_json, const ffi::Array<ffi::String>& const_names) {
  return NewRegionModule({symbol,
                          graph_json,
                          {const_names.begin(), const_names.end()},
                          FindEngine(engine).Isa(),
                          engine});
}

ffi::String Info() {
  json::Object info = {{"plugin_version", TVM_BYOC_DNNL_VERSION}};
  info.emplace_back("format_version", static_cast<int64_t>(kFormatVersion));
  info.emplace_back("graph_version", kGraphVersion);
  info.emplace_back("max_threads", MaxThreads());
  info.emplace_back("granted_cores", GrantedCores());
  return json::Value(std::move(info)).Dump();
}

/// Calls a function with its arguments; its parallel loops use so many threads.
void CallWithThreads(ffi::PackedArgs args, ffi::Any* result) {
  const ScopedThreads scope(args[0].cast<int>());
  args[1].cast<ffi::Function>().CallPacked(args.Slice(2), result);
}

/// Python registers a function of this name, which finds libraries.
std::string AskHost(const std::string& name, const std::string& error) {
  std::optional<ffi::Function> help = ffi::Function::GetGlobal("tvm_byoc_dnnl.EngineHelp");
  if (!help) return "Install what is named here, or put its folder on LD_LIBRARY_PATH";
  return std::string((*help)(name, error).cast<ffi::String>());
}

/// What export writes of one of our modules.
ffi::Bytes ModuleBytes(const ffi::Module& module) { return module->SaveToBytes(); }

TVM_FFI_STATIC_INIT_BLOCK() {
  KeepTeamOnAllCores();
  UseTeamForTVM();
  SetEngineHelp(AskHost);
  ffi::reflection::GlobalDef()
      .def("tvm_byoc_dnnl.UseTeamForTVM", UseTeamForTVM)
      .def("tvm_byoc_dnnl.ModuleCreate", Door(Create))
      .def("tvm_byoc_dnnl.ModuleBytes", Door(ModuleBytes))
      .def("tvm_byoc_dnnl.SaveProgram",
           [](const ffi::String& json) {
             return ffi::Bytes(SaveProgram({json.data(), json.size()}, WriterName()));
           })
      .def("tvm_byoc_dnnl.Probe", Door(Probe))
      .def("tvm_byoc_dnnl.Emit", Door(Emit))
      .def("tvm_byoc_dnnl.MeasureCandidates", Door(MeasureCandidates))
      .def("tvm_byoc_dnnl.DescribeCosts", Door(DescribeCosts))
      .def("tvm_byoc_dnnl.EngineInfo", Door(EngineInfo))
      .def("tvm_byoc_dnnl.ForgetAll", Door(ForgetAll))
      .def("tvm_byoc_dnnl.Info", Info)
      .def_packed("tvm_byoc_dnnl.CallWithThreads", CallWithThreads)
      .def("tvm_byoc_dnnl.MakePlans", MakePlans)
      .def("tvm_byoc_dnnl.UseCaches", UseCaches)
      .def("tvm_byoc_dnnl.NewCache", Door(NewCache))
      .def("tvm_byoc_dnnl.ShowCache", Door(ShowCache));
}

}  // namespace
}  // namespace tvm_byoc_dnnl
