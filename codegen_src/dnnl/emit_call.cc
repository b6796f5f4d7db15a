// SPDX-License-Identifier: Apache-2.0
#include "dnnl/emit_call.h"

#include "common/support/error.h"
#include "dnnl/primitives.h"

namespace tvm_byoc_dnnl {
namespace {

/// The attributes as source that sets `step->attr`.
struct PrintedAttr {
  EmittedLayouts* layouts;
  std::string* out;
  std::string post_ops;  // calls that stand behind the layouts of their operands
  bool complete = true;  // all layouts are there

  void Mask(const char* what, int arg, int mask) {
    *out += Cat("  DNNL_BYOC_CALL(dnnl_primitive_attr_set_", what, "_mask(step->attr, ",
                ArgName(arg), ", ", mask, "));\n");
  }
  void Append(const std::string& call) {
    post_ops += Cat("  DNNL_BYOC_CALL(dnnl_post_ops_append_", call, "));\n");
  }
  void Eltwise(const PostOpDesc& op) {
    Append(Cat("eltwise(step->post_ops, ", PrintAlgorithm(op.alg), ", ", PrintNumber(op.alpha),
               ", ", PrintNumber(op.beta)));
  }
  void Binary(const PostOpDesc& op) {
    const std::optional<std::string> md = layouts->Name(op.md, out);
    complete &= md.has_value();
    if (md) Append(Cat("binary(step->post_ops, ", PrintAlgorithm(op.alg), ", ", *md));
  }
  void Sum() { Append("sum(step->post_ops, 1.0f, 0, dnnl_data_type_undef"); }
};

bool EmitAttr(const OpDesc& op, EmittedLayouts* layouts, std::string* out) {
  *out +=
      "  DNNL_BYOC_CALL(dnnl_primitive_attr_create(&step->attr));\n"
      "  DNNL_BYOC_CALL(\n"
      "      dnnl_primitive_attr_set_scratchpad_mode(step->attr, dnnl_scratchpad_mode_user));\n";
  PrintedAttr printed{layouts, out, {}};
  DescribeAttr(op, &printed);
  if (op.post_ops.empty()) return true;
  *out += "  DNNL_BYOC_CALL(dnnl_post_ops_create(&step->post_ops));\n" + printed.post_ops +
          "  DNNL_BYOC_CALL(dnnl_primitive_attr_set_post_ops(step->attr, step->post_ops));\n";
  return printed.complete;
}

}  // namespace

bool EmitPrimitiveDesc(const OpDesc& op, EmittedLayouts* layouts, std::string* out) {
  std::vector<std::string> names;
  for (const OpArg& arg : op.args) {
    std::optional<std::string> md = layouts->Name(arg.md, out);
    if (!md) return false;
    names.push_back(*md);
  }
  if (!EmitAttr(op, layouts, out)) return false;
  *out += PrintCreate(op, names);
  return true;
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '/' || c == '\\' || c == '"') c = '_';
  }
  return text;
}

}  // namespace tvm_byoc_dnnl
