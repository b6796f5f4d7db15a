// SPDX-License-Identifier: Apache-2.0
#include "dnnl/emit_call.h"

#include "common/support/error.h"
#include "dnnl/primitives.h"

namespace tvm_byoc_dnnl {
namespace {

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
        appended += Cat("eltwise(step->post_ops, ", PrintAlgorithm(post_op.alg), ", ",
                        PrintNumber(post_op.alpha), ", ", PrintNumber(post_op.beta), "));\n");
        break;
      case PostOpDesc::Kind::kBinary: {
        std::optional<std::string> md = layouts->Name(post_op.md, out);
        if (!md) return false;
        appended += Cat("binary(step->post_ops, ", PrintAlgorithm(post_op.alg), ", ", *md, "));\n");
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
