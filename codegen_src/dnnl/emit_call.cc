// SPDX-License-Identifier: Apache-2.0
#include "dnnl/emit_call.h"

#include <dnnl_debug.h>

#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "common/support/error.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// The creation function of a kind, and its parameters by name (the same as in op_desc.cc).
struct Signature {
  PrimitiveKind kind;
  const char* function;
  const char* parameters;
};

constexpr Signature kSignatures[] = {
    {PrimitiveKind::convolution, "convolution_forward",
     "engine inference alg src weights bias dst strides dilates pad_begin pad_end attr"},
    {PrimitiveKind::deconvolution, "deconvolution_forward",
     "engine inference alg src weights bias dst strides dilates pad_begin pad_end attr"},
    {PrimitiveKind::matmul, "matmul", "engine src weights bias dst attr"},
    {PrimitiveKind::pooling, "pooling_forward",
     "engine inference alg src dst strides kernel dilates pad_begin pad_end attr"},
    {PrimitiveKind::eltwise, "eltwise_forward", "engine inference alg src dst alpha beta attr"},
    {PrimitiveKind::binary, "binary", "engine alg src src_1 dst attr"},
    {PrimitiveKind::prelu, "prelu_forward", "engine inference src weights dst attr"},
    {PrimitiveKind::softmax, "softmax_forward", "engine inference alg src dst axis attr"},
    {PrimitiveKind::batch_normalization, "batch_normalization_forward",
     "engine inference src dst epsilon flags attr"},
    {PrimitiveKind::layer_normalization, "layer_normalization_forward",
     "engine inference src dst null epsilon flags attr"},
    {PrimitiveKind::lrn, "lrn_forward",
     "engine inference alg src dst local_size alpha beta k attr"},
    {PrimitiveKind::reduction, "reduction", "engine alg src dst p epsilon attr"},
    {PrimitiveKind::resampling, "resampling_forward", "engine inference alg null src dst attr"},
    {PrimitiveKind::concat, "concat", "engine dst count axis sources attr"},
    {PrimitiveKind::shuffle, "shuffle_forward", "engine inference src dst axis group_size attr"},
    {PrimitiveKind::reorder, "reorder", "src engine dst engine attr"},
};

const Signature& SignatureOf(PrimitiveKind kind) {
  for (const Signature& row : kSignatures) {
    if (row.kind == kind) return row;
  }
  Fail(ErrorKind::kUnsupported, "no source can be emitted for oneDNN's primitive kind ",
       static_cast<int>(kind));
}

/// The shortest text that reads back as exactly this number.
std::string Number(float value) {
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "-INFINITY";
  char digits[40];
  std::string text(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

std::string Algorithm(dnnl::algorithm alg) {
  return Cat("dnnl_", dnnl_alg_kind2str(static_cast<dnnl_alg_kind_t>(alg)));
}

/// What MakeAttr does.
bool EmitAttr(const OpDesc& op, EmittedLayouts* layouts, std::string* out) {
  *out +=
      "  DNNL_BYOC_CALL(dnnl_primitive_attr_create(&step->attr));\n"
      "  DNNL_BYOC_CALL(\n"
      "      dnnl_primitive_attr_set_scratchpad_mode(step->attr, dnnl_scratchpad_mode_user));\n";
  for (const ScalingDesc& s : op.scalings) {
    auto set = [&](const char* what, int mask) {
      *out += Cat("  DNNL_BYOC_CALL(dnnl_primitive_attr_set_", what, "_mask(step->attr, ",
                  ArgName(s.arg), ", ", mask, "));\n");
    };
    if (s.scale >= 0) set("scales", s.scale_mask);
    if (s.zero_point >= 0) set("zero_points", s.zero_point_mask);
  }
  if (op.post_ops.empty()) return true;
  std::string appended;
  for (const PostOpDesc& post_op : op.post_ops) {
    appended += "  DNNL_BYOC_CALL(dnnl_post_ops_append_";
    switch (post_op.kind) {
      case PostOpDesc::Kind::kEltwise:
        appended += Cat("eltwise(step->post_ops, ", Algorithm(post_op.alg), ", ",
                        Number(post_op.alpha), ", ", Number(post_op.beta), "));\n");
        break;
      case PostOpDesc::Kind::kBinary: {
        std::optional<std::string> md = layouts->Name(post_op.md, out);
        if (!md) return false;
        appended += Cat("binary(step->post_ops, ", Algorithm(post_op.alg), ", ", *md, "));\n");
        break;
      }
      case PostOpDesc::Kind::kSum:
        appended += "sum(step->post_ops, 1.0f, 0, dnnl_data_type_undef));\n";
        break;
    }
  }
  *out += "  DNNL_BYOC_CALL(dnnl_post_ops_create(&step->post_ops));\n" + appended +
          "  DNNL_BYOC_CALL(dnnl_primitive_attr_set_post_ops(step->attr, step->post_ops));\n";
  return true;
}

}  // namespace

bool EmitPrimitiveDesc(const OpDesc& op, EmittedLayouts* layouts, std::string* out) {
  const Signature& signature = SignatureOf(op.kind);
  std::map<int, std::string> mds;
  std::vector<std::string> sources;  // of concat
  for (const OpArg& arg : op.args) {
    std::optional<std::string> md = layouts->Name(arg.md, out);
    if (!md) return false;
    mds[arg.arg] = *md;
    if (arg.arg != DNNL_ARG_DST) sources.push_back(*md);
  }
  if (!EmitAttr(op, layouts, out)) return false;
  auto md = [&](int arg) { return mds.count(arg) ? mds[arg] : std::string("NULL"); };
  const std::map<std::string, const Dims*> arrays = {{"strides", &op.strides},
                                                     {"dilates", &op.dilates},
                                                     {"pad_begin", &op.pad_begin},
                                                     {"pad_end", &op.pad_end},
                                                     {"kernel", &op.kernel}};
  const std::map<std::string, std::string> words = {
      {"engine", "r->engine"},
      {"inference", "dnnl_forward_inference"},
      {"alg", Algorithm(op.alg)},
      {"src", md(DNNL_ARG_SRC)},
      {"src_1", md(DNNL_ARG_SRC_1)},
      {"weights", md(DNNL_ARG_WEIGHTS)},
      {"bias", md(DNNL_ARG_BIAS)},
      {"dst", md(DNNL_ARG_DST)},
      {"null", "NULL"},
      {"alpha", Number(op.alpha)},
      {"beta", Number(op.beta)},
      {"k", Number(op.k)},
      {"p", Number(op.p)},
      {"epsilon", Number(op.epsilon)},
      {"axis", std::to_string(op.axis)},
      {"group_size", std::to_string(op.group_size)},
      {"local_size", std::to_string(op.local_size)},
      {"flags", std::to_string(op.flags)},
      {"count", std::to_string(sources.size())},
      {"attr", "step->attr"},
  };

  std::string declarations, call;
  std::istringstream parameters(signature.parameters);
  for (std::string name; parameters >> name;) {
    call += ", ";
    if (auto array = arrays.find(name); array != arrays.end()) {
      declarations += "    " + DimsArray(name, *array->second) + "\n";
      call += name;
    } else if (name == "sources") {
      std::string list = Join(sources);
      declarations += Cat("    const_dnnl_memory_desc_t sources[] = {",
                          list.substr(1, list.size() - 2), "};\n");
      call += name;
    } else {
      call += words.at(name);
    }
  }
  *out += Cat("  {\n", declarations, "    DNNL_BYOC_CALL(dnnl_", signature.function,
              "_primitive_desc_create(\n        &step->pd", call, "));\n  }\n");
  return true;
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '/' || c == '\\' || c == '"') c = '_';
  }
  return text;
}

}  // namespace tvm_byoc_dnnl
