// SPDX-License-Identifier: Apache-2.0
#include "dnnl/op_desc.h"

#include "dnnl/descriptor_cache.h"
#include "dnnl/primitives.h"

namespace tvm_byoc_dnnl {
namespace {

/// The attributes as oneDNN's object.
struct MadeAttr {
  dnnl::primitive_attr attr;
  dnnl::post_ops post_ops;

  void Mask(const std::string& what, int arg, int mask) {
    what == "scales" ? attr.set_scales_mask(arg, mask) : attr.set_zero_points_mask(arg, mask);
  }
  void Eltwise(const PostOpDesc& op) { post_ops.append_eltwise(op.alg, op.alpha, op.beta); }
  void Binary(const PostOpDesc& op) { post_ops.append_binary(op.alg, op.md); }
  void Sum() { post_ops.append_sum(); }
};

dnnl::primitive_attr MakeAttr(const OpDesc& op) {
  MadeAttr made;
  DescribeAttr(op, &made);
  made.attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (!op.post_ops.empty()) made.attr.set_post_ops(made.post_ops);
  return made.attr;
}

PrimitiveDesc NewPrimitiveDesc(const OpDesc& op, const dnnl::engine& engine) {
  PrimitiveDesc result;
  dnnl::primitive_attr attr;
  try {
    attr = MakeAttr(op);
  } catch (const dnnl::error&) {  // e.g. an operand of a dtype or rank that no post-op takes
    return result;
  }
  dnnl_primitive_desc_t pd = nullptr;
  if (Create(op, engine.get(), attr.get(), &pd) == dnnl_success) result = PrimitiveDesc(op, pd);
  return result;
}

/// A descriptor has 10 to 60 kB; the largest networks have a thousand different ones.
constexpr size_t kDescriptors = 2048;

template <typename Args>
auto* FindArg(Args& args, int arg) {
  for (auto& candidate : args) {
    if (candidate.arg == arg) return &candidate;
  }
  return static_cast<decltype(&args[0])>(nullptr);
}

}  // namespace

const OpArg* OpDesc::Find(int arg) const { return FindArg(args, arg); }
OpArg* OpDesc::Find(int arg) { return FindArg(args, arg); }

PrimitiveDesc::PrimitiveDesc(const OpDesc& op, dnnl_primitive_desc_t pd) {
  auto answer = std::make_shared<Answer>();
  answer_ = answer;
  answer->pd.reset(pd);
  answer->impl = answer->pd.impl_info_str();
  auto ask = [&](int arg) {
    answer->args.emplace_back(arg, answer->pd.query_md(dnnl::query::exec_arg_md, arg));
  };
  for (const OpArg& arg : op.args) ask(arg.arg);
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    if (op.post_ops[i].kind == PostOpDesc::Kind::kBinary) ask(PostOpArg(i));
  }
  for (const ScalingDesc& s : op.scalings) {
    if (s.scale >= 0) ask(DNNL_ARG_ATTR_SCALES | s.arg);
    if (s.zero_point >= 0) ask(DNNL_ARG_ATTR_ZERO_POINTS | s.arg);
  }
  ask(DNNL_ARG_SCRATCHPAD);
}

PrimitiveDesc PrimitiveDesc::Named(const std::string& impl) const {
  auto answer = std::make_shared<Answer>(*answer_);
  answer->impl = impl;
  PrimitiveDesc result;
  result.answer_ = std::move(answer);
  return result;
}

const_dnnl_primitive_desc_t PrimitiveDesc::get() const {
  return answer_ == nullptr ? nullptr : answer_->pd.get();
}

const MemoryDesc& PrimitiveDesc::Arg(int arg) const {
  static const auto* none = new MemoryDesc;  // outlives all
  for (const auto& [known, md] : answer_->args) {
    if (known == arg) return md;
  }
  return *none;
}

static DescriptorCache& Answers() {
  static auto* cache = new DescriptorCache(kDescriptors);  // outlives all
  return *cache;
}

PrimitiveDesc AskOneDnn(const OpDesc& op, const dnnl::engine& engine) {
  return Answers().Get(op, [&] { return NewPrimitiveDesc(op, engine); });
}

void ForgetOneDnn() {
  Answers().Clear();
  int capacity = 0;
  if (dnnl_get_primitive_cache_capacity(&capacity) != dnnl_success) return;
  dnnl_set_primitive_cache_capacity(0);  // which empties it
  dnnl_set_primitive_cache_capacity(capacity);
}

int PostOpArg(size_t index) {
  return DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(index)) | DNNL_ARG_SRC_1;
}

}  // namespace tvm_byoc_dnnl
