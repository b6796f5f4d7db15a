// SPDX-License-Identifier: Apache-2.0
#include <dnnl_debug.h>

#include <algorithm>
#include <numeric>

#include "common/support/error.h"
#include "dnnl/emit.h"
#include "dnnl/layout.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {
namespace {

using FormatKind = dnnl::memory::format_kind;

std::string TypeName(const MemoryDesc& md) {
  return Cat("dnnl_", dnnl_dt2str(static_cast<dnnl_data_type_t>(md.get_data_type())));
}

/// oneDNN's comparison refuses an empty descriptor, which is what a view that cannot be made gives.
bool Is(const MemoryDesc& candidate, const MemoryDesc& md) { return candidate && candidate == md; }

/// The permutation of axes that makes `to` of `from`, in the form that oneDNN takes.
std::optional<std::vector<int>> FindPermutation(const MemoryDesc& from, const MemoryDesc& to) {
  Dims sorted_from = from.get_dims(), sorted_to = to.get_dims();
  std::sort(sorted_from.begin(), sorted_from.end());
  std::sort(sorted_to.begin(), sorted_to.end());
  if (sorted_from != sorted_to || sorted_to.size() > 6) return std::nullopt;
  std::vector<int> axes(sorted_to.size());
  std::iota(axes.begin(), axes.end(), 0);
  do {
    if (Is(from.permute_axes(axes, /*allow_empty=*/true), to)) return axes;
  } while (std::next_permutation(axes.begin(), axes.end()));
  return std::nullopt;
}

}  // namespace

std::string DimsArray(const std::string& name, const Dims& dims) {
  std::string list = Join(dims);
  return Cat("const dnnl_dims_t ", name, " = {", list.substr(1, list.size() - 2), "};");
}

std::optional<std::string> EmittedLayouts::Name(const MemoryDesc& md, std::string* out) {
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i] == md) return Cat("r->md[", i, "]");
  }
  const Dims dims = md.get_dims();
  const std::string target = Cat("&r->md[", known_.size(), "], ");
  const std::string shape = Cat(dims.size(), ", dims, ", TypeName(md), ", ");
  // Those with blocks a kernel of ours may have left where no primitive made them.
  constexpr std::pair<dnnl::memory::format_tag, const char*> kTags[] = {
      {dnnl::memory::format_tag::any, "dnnl_format_tag_any"},
      {dnnl::memory::format_tag::aBcd8b, "dnnl_aBcd8b"},
      {dnnl::memory::format_tag::aBcd16b, "dnnl_aBcd16b"}};
  for (const auto& [tag, name] : kTags) {
    const bool is_any = tag == dnnl::memory::format_tag::any;
    if (is_any ? !IsAny(md) : dims.size() != 4 || MemoryDesc(dims, md.get_data_type(), tag) != md)
      continue;
    return Add(md,
               Cat("  {\n    ", DimsArray("dims", dims),
                   "\n    DNNL_BYOC_CALL(dnnl_memory_desc_create_with_tag(", target, shape, name,
                   "));\n  }\n"),
               out);
  }
  if (IsStrided(md) && MemoryDesc(dims, md.get_data_type(), md.get_strides()) == md) {
    return Add(
        md,
        Cat("  {\n    ", DimsArray("dims", dims), "\n    ", DimsArray("strides", md.get_strides()),
            "\n    DNNL_BYOC_CALL(dnnl_memory_desc_create_with_strides(", target, shape,
            "strides));\n  }\n"),
        out);
  }
  std::optional<std::string> call = Derived(md);
  if (!call) return std::nullopt;
  return Add(md, *call, out);
}

std::optional<std::string> EmittedLayouts::NameOfArg(const MemoryDesc& md, const PrimitiveDesc& pd,
                                                     int arg, std::string* out) {
  bool known = std::find(known_.begin(), known_.end(), md) != known_.end();
  if (known || !pd || !Is(pd.Arg(arg), md)) return Name(md, out);
  return Add(md,
             Cat("  DNNL_BYOC_CALL(dnnl_byoc_query(&r->md[", known_.size(),
                 "], step->pd, dnnl_query_exec_arg_md, ", ArgName(arg), "));\n"),
             out);
}

std::string EmittedLayouts::Add(const MemoryDesc& md, const std::string& call, std::string* out) {
  *out += Cat("  /* ", ToString(md), " */\n", call);
  known_.push_back(md);
  return Cat("r->md[", known_.size() - 1, "]");
}

/// A reshape, a permutation or a part of a known layout that gives exactly this one.
std::optional<std::string> EmittedLayouts::Derived(const MemoryDesc& md) const {
  const Dims dims = md.get_dims();
  const Dims zeros(dims.size(), 0);
  for (size_t i = 0; i < known_.size(); ++i) {
    const MemoryDesc& from = known_[i];
    if (from.get_format_kind() != FormatKind::blocked ||
        from.get_data_type() != md.get_data_type()) {
      continue;
    }
    const std::string names = Cat("(&r->md[", known_.size(), "], r->md[", i, "], ");
    const std::string open = Cat("  {\n    ", DimsArray("dims", dims), "\n    ");
    if (Is(from.reshape(dims, /*allow_empty=*/true), md)) {
      return Cat(open, "DNNL_BYOC_CALL(dnnl_memory_desc_reshape", names, dims.size(),
                 ", dims));\n  }\n");
    }
    if (from.get_ndims() != md.get_ndims()) continue;
    if (Is(from.submemory_desc(dims, zeros, /*allow_empty=*/true), md)) {
      return Cat(open, DimsArray("begin", zeros),
                 "\n    DNNL_BYOC_CALL(dnnl_memory_desc_create_submemory", names,
                 "dims, begin));\n  }\n");
    }
    if (std::optional<std::vector<int>> axes = FindPermutation(from, md)) {
      std::string list = Join(*axes);
      return Cat("  {\n    const int axes[] = {", list.substr(1, list.size() - 2),
                 "};\n    DNNL_BYOC_CALL(dnnl_memory_desc_permute_axes", names, "axes));\n  }\n");
    }
  }
  return std::nullopt;
}

std::string ArgName(int arg) {
  struct Row {
    int arg;
    const char* name;
  };
  static constexpr Row kRows[] = {
      {DNNL_ARG_SRC, "DNNL_ARG_SRC"},         {DNNL_ARG_SRC_1, "DNNL_ARG_SRC_1"},
      {DNNL_ARG_WEIGHTS, "DNNL_ARG_WEIGHTS"}, {DNNL_ARG_BIAS, "DNNL_ARG_BIAS"},
      {DNNL_ARG_MEAN, "DNNL_ARG_MEAN"},       {DNNL_ARG_VARIANCE, "DNNL_ARG_VARIANCE"},
      {DNNL_ARG_SCALE, "DNNL_ARG_SCALE"},     {DNNL_ARG_SHIFT, "DNNL_ARG_SHIFT"},
      {DNNL_ARG_DST, "DNNL_ARG_DST"},
  };
  for (const Row& row : kRows) {
    if (row.arg == arg) return row.name;
  }
  for (auto [flag, name] : {std::pair{DNNL_ARG_ATTR_SCALES, "DNNL_ARG_ATTR_SCALES"},
                            std::pair{DNNL_ARG_ATTR_ZERO_POINTS, "DNNL_ARG_ATTR_ZERO_POINTS"}}) {
    const int of = arg & ~flag;
    if ((arg & flag) != 0 && (of == DNNL_ARG_SRC || of == DNNL_ARG_WEIGHTS || of == DNNL_ARG_DST)) {
      return Cat(name, " | ", ArgName(of));
    }
  }
  const int post_op = arg / DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE - 1;
  if (post_op >= 0 && arg == PostOpArg(static_cast<size_t>(post_op))) {
    return Cat("DNNL_ARG_ATTR_MULTIPLE_POST_OP(", post_op, ") | DNNL_ARG_SRC_1");
  }
  if (arg >= DNNL_ARG_MULTIPLE_SRC && arg < DNNL_ARG_MULTIPLE_DST) {
    return Cat("DNNL_ARG_MULTIPLE_SRC + ", arg - DNNL_ARG_MULTIPLE_SRC);
  }
  return std::to_string(arg);
}

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

}  // namespace tvm_byoc_dnnl
