// SPDX-License-Identifier: Apache-2.0
#include "dnnl/emit.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"

namespace tvm_byoc_dnnl {
namespace {

/// A name, safe inside a comment and inside a string literal.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '/' || c == '\\' || c == '"') c = '_';
  }
  return text;
}

/// "relax.nn.conv2d, relax.nn.relu", safe inside a comment.
std::string SourceOf(const Graph& graph, const Step& step) {
  if (step.node >= static_cast<int>(graph.nodes.size())) return "delivers an output";
  std::string text;
  for (const Node* node : NodesOf(graph, step)) {
    for (const std::string& op : node->source) text += (text.empty() ? "" : ", ") + op;
  }
  if (text.empty()) text = Name(graph.nodes[step.node].kind);
  text = Printable(text);
  return step.conversion ? "layout for " + text : text;
}

const char* HomeName(byoc_home home) {
  constexpr const char* kNames[] = {"BYOC_ARENA",    "BYOC_INPUT",  "BYOC_OUTPUT",
                                    "BYOC_CONSTANT", "BYOC_PACKED", "BYOC_TEMPORARY"};
  return kNames[home];
}

/// DLPack's names, in the order of DType.
constexpr const char* kDLDataTypes[] = {
    "{kDLFloat, 32, 1}", "{kDLFloat, 16, 1}", "{kDLBfloat, 16, 1}",
    "{kDLInt, 32, 1}",   "{kDLInt, 8, 1}",    "{kDLUInt, 8, 1}",
    "{kDLBool, 8, 1}",   "{kDLFloat, 64, 1}", "{kDLInt, 64, 1}"};

/// Tables of tensors, whose shapes stand in one array.
class Tables {
 public:
  explicit Tables(const Graph& graph) : graph_(graph) {}

  /// `tensors`: ids, or -1 for an argument that is no tensor.
  void Add(const char* table, const std::vector<int>& tensors) {
    text_ += Cat("static const dnnl_byoc_tensor ", table, "[] = {\n");
    for (int id : tensors) {
      if (id < 0) {
        text_ += "    {\"a shape\", {kDLInt, 64, 1}, -1, NULL},\n";
        continue;
      }
      const Tensor& tensor = graph_.tensors[id];
      const Dims shape = KnownDims(tensor.shape);
      text_ += Cat("    {\"", Printable(tensor.name), "\", ",
                   kDLDataTypes[static_cast<int>(tensor.dtype)], ", ", shape.size(), ", kShapes + ",
                   count_, "}, /* ", Join(shape), " */\n");
      for (int64_t dim : shape) shapes_ += Cat(dim, ", ");
      shapes_ += shape.empty() ? "" : "\n    ";
      count_ += shape.size();
    }
    text_ += "    {NULL, {kDLInt, 64, 1}, 0, NULL}};\n";
  }

  std::string Text() const {
    return Cat("static const int64_t kShapes[] = {\n    ", shapes_, "0};\n", text_, "\n");
  }

 private:
  const Graph& graph_;
  std::string text_, shapes_;
  size_t count_ = 0;
};

/// The end of source that is a function of TVM: its signature and its entry points.
std::string EmitEntryPoints(const Graph& graph) {
  std::vector<int> inputs, constants;
  for (const Input& input : graph.inputs) inputs.push_back(input.tensor);
  for (const Constant& constant : graph.constants) constants.push_back(constant.tensor);
  Tables tables(graph);
  tables.Add("kInputs", inputs);
  tables.Add("kOutputs", graph.outputs);
  tables.Add("kConstants", constants);

  const std::string& name = graph.name;
  const std::string parameters =
      "(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result)";
  return Cat("\n", tables.Text(),
             "/* Of the constants; whoever knows their values defines it. */\n"
             "DNNL_BYOC_EXTERN const uint64_t ",
             name, "_checksums[];\n", "static const dnnl_byoc_signature kSignature = {\n    \"",
             name, "\", ", name, "_create, ", inputs.size(), ", ", graph.outputs.size(), ", ",
             constants.size(), ", kInputs, kOutputs, kConstants, ", name, "_checksums};\n\n",
             "static void release(void);\n"
             "static dnnl_byoc_function function = {\n"
             "    &kSignature, release, PTHREAD_MUTEX_INITIALIZER, 0, NULL, NULL, NULL};\n"
             "static void release(void) { dnnl_byoc_tvm_release(&function); }\n\n",
             "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
             "/* Takes the constants: ", constants.size(),
             " of them. */\nTVM_FFI_DLL_EXPORT int __tvm_ffi___init_", name, parameters,
             " {\n  (void)self;\n"
             "  return dnnl_byoc_tvm_init(&function, args, count, result);\n}\n\n",
             "TVM_FFI_DLL_EXPORT int __tvm_ffi_", name, parameters, " {\n  void* data[",
             inputs.size() + graph.outputs.size(),
             "];\n  (void)self;\n  return dnnl_byoc_tvm_call(&function, args, count, data, "
             "result);\n}\n\n",
             "#ifdef __cplusplus\n}\n#endif\n");
}

class Emitter {
 public:
  Emitter(const Graph& graph, const Program& program, bool as_function)
      : graph_(graph), program_(program), as_function_(as_function) {}

  std::string Run() {
    EmitAllSteps();
    return Cat(Head(), Buffers(), functions_, Creation(),
               as_function_ ? EmitEntryPoints(graph_) : "");
  }

 private:
  struct Pending {
    const Step* step;
    const char* list;  // "init" or "steps"
    size_t index;
    std::string Function() const { return Cat(list[0] == 'i' ? "init_" : "step_", index); }
  };

  std::string Head() const {
    std::set<std::string> headers;
    for (const auto* steps : {&program_.init, &program_.steps}) {
      for (const Step& step : *steps) {
        if (step.kernel != nullptr) headers.insert(step.kernel->header);
      }
    }
    std::string kernels;
    const std::optional<byoc_isa> isa = Isa().Vectors();
    if (isa && !headers.empty()) kernels = Cat("#define BYOC_ISAS ", static_cast<int>(*isa), "\n");
    for (const std::string& header : headers) {
      kernels += Cat("#include \"byoc_", header, ".h\"\n");
    }
    return Cat("/* ", graph_.name, ": ", program_.steps.size(), " steps per call, ",
               program_.init.size(),
               " once. Written by a program from a plan: change the model, not this file.\n"
               "   The calls are those of the plan that the running module has, in its layouts:\n"
               "   what oneDNN chose is asked for again, and must be the same. */\n"
               "#include \"",
               as_function_ ? "dnnl_byoc_tvm.h" : "dnnl_byoc_runtime.h", "\"\n", kernels, "\n");
  }

  std::string Buffers() const {
    std::string text = "static const byoc_buffer kBuffers[] = {\n";
    const std::vector<byoc_buffer> buffers = ListBuffers(program_);
    for (size_t i = 0; i < buffers.size(); ++i) {
      text += Cat("    /* ", i, " */ {", HomeName(buffers[i].home), ", ", buffers[i].index, ", ",
                  buffers[i].bytes, ", ", buffers[i].alias, "},\n");
    }
    return text + "};\n\n";
  }

  /// Each step after those whose layouts it takes over; that is not the order of execution, since
  /// steps that pack weights need the layout that the convolution chose.
  void EmitAllSteps() {
    std::vector<Pending> pending;
    for (size_t i = 0; i < program_.init.size(); ++i) {
      pending.push_back({&program_.init[i], "init", i});
    }
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      pending.push_back({&program_.steps[i], "steps", i});
    }
    std::stable_sort(pending.begin(), pending.end(), [](const Pending& a, const Pending& b) {
      return a.step->node < b.step->node;
    });
    while (!pending.empty()) {
      auto ready = std::find_if(pending.begin(), pending.end(),
                                [&](const Pending& candidate) { return EmitStep(candidate); });
      if (ready == pending.end()) {
        const Step& step = *pending.front().step;
        Fail(ErrorKind::kUnsupported, graph_.name, ": node ", step.node, " (",
             SourceOf(graph_, step), ", ", step.impl,
             ") works in a layout of oneDNN's that no call can make again, so it cannot be emitted "
             "as source. Compile the model as a module instead");
      }
      pending.erase(ready);
    }
  }

  bool EmitStep(const Pending& pending) {
    const Step& step = *pending.step;
    EmittedLayouts layouts = layouts_;
    std::string body;
    const bool done =
        step.kernel != nullptr ? EmitKernel(step, &body) : EmitPrimitive(step, &layouts, &body);
    if (!done) return false;
    layouts_ = std::move(layouts);
    const std::string name = pending.Function();
    const std::string source = SourceOf(graph_, step);
    const std::string label = Cat("\"", name, " (", source, ")\"");
    functions_ += Cat("/* ", source, "\n   ", step.impl, " */\nstatic int ", name,
                      "(dnnl_byoc_region* r) {\n");
    if (step.kernel != nullptr) {
      functions_ += Cat("  byoc_step* step = &r->plan.", pending.list, "[", pending.index,
                        "];\n  step->name = ", label, ";\n");
    } else {
      functions_ +=
          Cat("  DNNL_BYOC_BEGIN(", pending.list, ", ", pending.index, ", ", label, ");\n");
    }
    functions_ += body + "}\n\n";
    creation_ += Cat("  BYOC_TRY(", name, "(r));\n");
    return true;
  }

  bool EmitPrimitive(const Step& step, EmittedLayouts* layouts, std::string* out) const {
    if (!EmitPrimitiveDesc(step.op, layouts, out)) return false;
    int scratchpad = -1;
    std::string binds;
    for (const StepArg& arg : step.args) {
      if (arg.arg == DNNL_ARG_SCRATCHPAD) {
        scratchpad = arg.place.buffer;
        continue;
      }
      std::optional<std::string> md = layouts->NameOfArg(arg.place.md, step.pd, arg.arg, out);
      if (!md) return false;
      binds += Cat("  BYOC_TRY(dnnl_byoc_bind(r, step, ", ArgName(arg.arg), ", ", arg.place.buffer,
                   ", ", arg.place.offset, ", ", *md, "));\n");
    }
    *out += Cat(binds, "  return dnnl_byoc_finish(r, step, ", scratchpad, ");\n");
    return true;
  }

  bool EmitKernel(const Step& step, std::string* out) const {
    int scratch = -1;
    size_t scratch_bytes = 0;
    std::string params;
    for (int64_t param : step.params)
      params += Cat(params.empty() ? "" : ", ", "INT64_C(", param, ")");
    *out += Cat("  const int64_t params[] = {", params, "};\n");
    for (const StepArg& arg : step.args) {
      const size_t bytes = arg.place.md.get_size();
      if (arg.arg == DNNL_ARG_SCRATCHPAD) {
        scratch = arg.place.buffer;
        scratch_bytes = bytes;
        continue;
      }
      *out += Cat("  BYOC_TRY(byoc_bind(&r->plan, step, ", arg.place.buffer, ", ", arg.place.offset,
                  ", ", bytes, ", /*written=*/", arg.arg == DNNL_ARG_DST, "));\n");
    }
    *out += Cat("  return byoc_use_kernel(&r->plan, step, byoc_", step.kernel->name, ", params, ",
                step.params.size(), ", ", scratch, ", ", scratch_bytes, ");\n");
    return true;
  }

  std::string Creation() const {
    const std::string declaration =
        Cat("int ", graph_.name, "_create(dnnl_byoc_region* r, const void* const* constants)");
    // Other files call it, but for that of a function of TVM.
    const std::string linkage =
        as_function_ ? "static "
                     : Cat("#ifdef __cplusplus\nextern \"C\"\n#endif\n", declaration, ";\n\n");
    return Cat(
        "/* `constants` in the order of the graph; they must outlive the region. Returns 0, or 1\n"
        "   with a message in r->plan.error. In either case dnnl_byoc_destroy(r) releases "
        "everything. "
        "*/\n",
        linkage, declaration, " {\n  BYOC_TRY(dnnl_byoc_setup(r, kBuffers, ",
        program_.buffers.size(), ", ", layouts_.size(), ", ", program_.init.size(), ", ",
        program_.steps.size(), ", ", program_.arena_bytes, ", /*isa=*/",
        static_cast<int>(dnnl_get_effective_cpu_isa()), ", constants));\n", creation_,
        "  return byoc_initialise(&r->plan);\n}\n");
  }

  const Graph& graph_;
  const Program& program_;
  const bool as_function_;
  EmittedLayouts layouts_;
  std::string functions_, creation_;
};

}  // namespace

std::string EmitSource(const Graph& graph, const Program& program, bool as_function) {
  return Emitter(graph, program, as_function).Run();
}

}  // namespace tvm_byoc_dnnl
