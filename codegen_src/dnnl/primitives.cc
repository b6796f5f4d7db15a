// SPDX-License-Identifier: Apache-2.0
#include <dnnl_debug.h>

#include <charconv>
#include <cmath>

#include "common/support/error.h"
#include "dnnl/emit.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

struct Call {
  const OpDesc& op;
  const_dnnl_primitive_attr_t attr;
  std::vector<const_dnnl_memory_desc_t> sources;  // of concat
};

struct PrintedCall {
  const OpDesc& op;
  const std::vector<std::string>& layouts;
  std::string declarations = {};  // arrays that the call names

  std::string Declare(const std::string& name, const std::string& declaration) {
    declarations += "    " + declaration + "\n";
    return name;
  }
};

// --- values as arguments of C functions, and as text

const dnnl_dim_t* ToC(const Dims& dims) { return dims.data(); }
dnnl_alg_kind_t ToC(dnnl::algorithm alg) { return static_cast<dnnl_alg_kind_t>(alg); }
template <typename T>
T ToC(T value) {
  return value;
}

std::string ToText(const char* name, const Dims& dims, PrintedCall* call) {
  return call->Declare(name, DimsArray(name, dims));
}
std::string ToText(const char*, dnnl::algorithm alg, PrintedCall*) { return PrintAlgorithm(alg); }
std::string ToText(const char*, float value, PrintedCall*) { return PrintNumber(value); }
template <typename T>
std::string ToText(const char*, T value, PrintedCall*) {
  return std::to_string(value);
}

// --- the parameters

#define FIELD(Parameter, field)                                                                 \
  struct Parameter {                                                                            \
    static auto Value(const Call& call) { return ToC(call.op.field); }                          \
    static std::string Text(PrintedCall* call) { return ToText(#field, call->op.field, call); } \
  }
FIELD(Alg, alg);
FIELD(Strides, strides);
FIELD(Dilates, dilates);
FIELD(PadBegin, pad_begin);
FIELD(PadEnd, pad_end);
FIELD(Kernel, kernel);
FIELD(Alpha, alpha);
FIELD(Beta, beta);
FIELD(K, k);
FIELD(P, p);
FIELD(Epsilon, epsilon);
FIELD(Axis, axis);
FIELD(GroupSize, group_size);
FIELD(LocalSize, local_size);
FIELD(Flags, flags);
#undef FIELD

struct Engine {
  static dnnl_engine_t Value(const Call&) { return CpuEngine().get(); }
  static std::string Text(PrintedCall*) { return "r->engine"; }
};

struct Inference {
  static dnnl_prop_kind_t Value(const Call&) { return dnnl_forward_inference; }
  static std::string Text(PrintedCall*) { return "dnnl_forward_inference"; }
};

struct Attr {
  static const_dnnl_primitive_attr_t Value(const Call& call) { return call.attr; }
  static std::string Text(PrintedCall*) { return "step->attr"; }
};

struct Null {
  static std::nullptr_t Value(const Call&) { return nullptr; }
  static std::string Text(PrintedCall*) { return "NULL"; }
};

/// The layout of an argument; none if the operation does not have it.
template <int kArg>
struct Layout {
  static const_dnnl_memory_desc_t Value(const Call& call) {
    const OpArg* found = call.op.Find(kArg);
    return found == nullptr ? nullptr : found->md.get();
  }
  static std::string Text(PrintedCall* call) {
    const OpArg* found = call->op.Find(kArg);
    return found == nullptr ? "NULL" : call->layouts[found - call->op.args.data()];
  }
};
using Src = Layout<DNNL_ARG_SRC>;
using Src1 = Layout<DNNL_ARG_SRC_1>;
using Weights = Layout<DNNL_ARG_WEIGHTS>;
using Bias = Layout<DNNL_ARG_BIAS>;
using Dst = Layout<DNNL_ARG_DST>;

/// All arguments but the result, which stands last.
struct Count {
  static int Value(const Call& call) { return static_cast<int>(call.sources.size()); }
  static std::string Text(PrintedCall* call) { return std::to_string(call->layouts.size() - 1); }
};
struct Sources {
  static const const_dnnl_memory_desc_t* Value(const Call& call) { return call.sources.data(); }
  static std::string Text(PrintedCall* call) {
    const std::string list =
        Join(std::vector<std::string>(call->layouts.begin(), call->layouts.end() - 1));
    return call->Declare("sources", Cat("const_dnnl_memory_desc_t sources[] = {",
                                        list.substr(1, list.size() - 2), "};"));
  }
};

template <auto kFunction, typename... Parameters>
dnnl_status_t MakeCall(const Call& call, dnnl_primitive_desc_t* pd) {
  return kFunction(pd, Parameters::Value(call)...);
}

template <typename... Parameters>
std::string PrintArguments(PrintedCall* call) {
  std::string text;
  ((text += ", " + Parameters::Text(call)), ...);
  return text;
}

struct Row {
  PrimitiveKind kind;
  const char* function;
  dnnl_status_t (*call)(const Call&, dnnl_primitive_desc_t*);
  std::string (*print)(PrintedCall*);
};

#define ROW(kind, function, ...)                                                                   \
  {PrimitiveKind::kind, #function, MakeCall<dnnl_##function##_primitive_desc_create, __VA_ARGS__>, \
   PrintArguments<__VA_ARGS__>}
constexpr Row kRows[] = {
    ROW(convolution, convolution_forward, Engine, Inference, Alg, Src, Weights, Bias, Dst, Strides,
        Dilates, PadBegin, PadEnd, Attr),
    ROW(deconvolution, deconvolution_forward, Engine, Inference, Alg, Src, Weights, Bias, Dst,
        Strides, Dilates, PadBegin, PadEnd, Attr),
    ROW(matmul, matmul, Engine, Src, Weights, Bias, Dst, Attr),
    ROW(pooling, pooling_forward, Engine, Inference, Alg, Src, Dst, Strides, Kernel, Dilates,
        PadBegin, PadEnd, Attr),
    ROW(eltwise, eltwise_forward, Engine, Inference, Alg, Src, Dst, Alpha, Beta, Attr),
    ROW(binary, binary, Engine, Alg, Src, Src1, Dst, Attr),
    ROW(prelu, prelu_forward, Engine, Inference, Src, Weights, Dst, Attr),
    ROW(softmax, softmax_forward, Engine, Inference, Alg, Src, Dst, Axis, Attr),
    ROW(batch_normalization, batch_normalization_forward, Engine, Inference, Src, Dst, Epsilon,
        Flags, Attr),
    ROW(layer_normalization, layer_normalization_forward, Engine, Inference, Src, Dst, Null,
        Epsilon, Flags, Attr),
    ROW(lrn, lrn_forward, Engine, Inference, Alg, Src, Dst, LocalSize, Alpha, Beta, K, Attr),
    ROW(reduction, reduction, Engine, Alg, Src, Dst, P, Epsilon, Attr),
    ROW(resampling, resampling_forward, Engine, Inference, Alg, Null, Src, Dst, Attr),
    ROW(concat, concat, Engine, Dst, Count, Axis, Sources, Attr),
    ROW(shuffle, shuffle_forward, Engine, Inference, Src, Dst, Axis, GroupSize, Attr),
    ROW(reorder, reorder, Src, Engine, Dst, Engine, Attr),
};
#undef ROW

const Row* FindRow(PrimitiveKind kind) {
  for (const Row& row : kRows) {
    if (row.kind == kind) return &row;
  }
  return nullptr;
}

}  // namespace

dnnl_status_t Create(const OpDesc& op, const_dnnl_primitive_attr_t attr,
                     dnnl_primitive_desc_t* pd) {
  const Row* row = FindRow(op.kind);
  if (row == nullptr) return dnnl_unimplemented;
  Call call{op, attr, {}};
  for (const OpArg& arg : op.args) {
    if (arg.arg != DNNL_ARG_DST) call.sources.push_back(arg.md.get());
  }
  return row->call(call, pd);
}

std::string PrintCreate(const OpDesc& op, const std::vector<std::string>& layouts) {
  const Row* row = FindRow(op.kind);
  if (row == nullptr) {
    Fail(ErrorKind::kUnsupported, "no source can be emitted for oneDNN's primitive kind ",
         static_cast<int>(op.kind));
  }
  PrintedCall call{op, layouts};
  const std::string arguments = row->print(&call);
  return Cat("  {\n", call.declarations, "    DNNL_BYOC_CALL(dnnl_", row->function,
             "_primitive_desc_create(\n        &step->pd", arguments, "));\n  }\n");
}

std::string PrintNumber(float value) {
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "-INFINITY";
  char digits[40];
  std::string text(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

std::string PrintAlgorithm(dnnl::algorithm alg) {
  return Cat("dnnl_", dnnl_alg_kind2str(static_cast<dnnl_alg_kind_t>(alg)));
}

}  // namespace tvm_byoc_dnnl
