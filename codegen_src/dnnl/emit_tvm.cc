// SPDX-License-Identifier: Apache-2.0
// The end of emitted source that is a function of TVM: its signature and its entry points.
#include <utility>
#include <vector>

#include "common/support/error.h"
#include "dnnl/emit.h"

namespace tvm_byoc_dnnl {
namespace {

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

}  // namespace

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

}  // namespace tvm_byoc_dnnl
