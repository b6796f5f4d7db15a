// SPDX-License-Identifier: Apache-2.0
#include "dnnl/op_desc.h"

#include <utility>

#include "dnnl/descriptor_cache.h"

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

PrimitiveDesc Ask(const OpDesc& op, const dnnl::engine& engine) {
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

/// oneDNN's loops over results that share weights go along a row.
PrimitiveDesc NewPrimitiveDesc(const OpDesc& op, const dnnl::engine& engine) {
  if (const std::optional<OpDesc> row = AlongRows(op)) {
    if (PrimitiveDesc answer = Ask(*row, engine).About(op)) return answer;
  }
  return Ask(op, engine);
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

constexpr size_t kImageRank = 4;

}  // namespace

std::optional<MemoryDesc> InOneRow(const MemoryDesc& md) {
  Dims dims = md.get_dims();
  if (dims.size() < kImageRank) return md;  // of channels alone
  dims.back() *= std::exchange(dims[dims.size() - 2], 1);
  const MemoryDesc flat = md.reshape(dims, /*allow_empty=*/true);
  return flat ? std::optional(flat) : std::nullopt;
}

std::optional<OpDesc> AlongRows(const OpDesc& op) {
  constexpr int64_t kShort = 8;
  if (op.kind != dnnl::primitive::kind::convolution &&
      op.kind != dnnl::primitive::kind::deconvolution)
    return std::nullopt;
  const Dims out = op.Find(DNNL_ARG_DST)->md.get_dims();
  const int64_t width = out.back();
  if (op.strides.size() != 2 || out[2] == 1 || width >= kShort || op.pad_begin[1] != 0 ||
      op.pad_end[1] != 0 || op.Find(DNNL_ARG_WEIGHTS)->md.get_dims().back() != 1 ||
      op.Find(DNNL_ARG_SRC)->md.get_dims().back() != width || (width > 1 && op.strides[0] > 1))
    return std::nullopt;
  OpDesc flat = op;
  flat.strides = {1, op.strides[0]};
  flat.dilates = {0, (op.dilates[0] + 1) * width - 1};  // oneDNN counts the holes
  flat.pad_begin = {0, op.pad_begin[0] * width};
  flat.pad_end = {0, op.pad_end[0] * width};
  std::vector<MemoryDesc*> layouts;
  for (OpArg& arg : flat.args) layouts.push_back(&arg.md);
  for (PostOpDesc& post_op : flat.post_ops) {
    if (post_op.kind == PostOpDesc::Kind::kBinary) layouts.push_back(&post_op.md);
  }
  for (MemoryDesc* md : layouts) {
    const std::optional<MemoryDesc> row = InOneRow(*md);
    if (!row) return std::nullopt;
    *md = *row;
  }
  return flat;
}

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

PrimitiveDesc PrimitiveDesc::About(const OpDesc& op) const {
  if (answer_ == nullptr) return {};
  auto answer = std::make_shared<Answer>(*answer_);
  const auto has_dims_of = [&](int arg, const MemoryDesc& like) {
    for (auto& [known, md] : answer->args) {
      if (known == arg && !(md = md.reshape(like.get_dims(), /*allow_empty=*/true))) return false;
    }
    return true;
  };
  for (const OpArg& arg : op.args) {
    if (!has_dims_of(arg.arg, arg.md)) return {};
  }
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    const PostOpDesc& post_op = op.post_ops[i];
    if (post_op.kind == PostOpDesc::Kind::kBinary && !has_dims_of(PostOpArg(i), post_op.md))
      return {};
  }
  answer->is_in_one_row = !answer->is_in_one_row;
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
