// SPDX-License-Identifier: Apache-2.0
#include "dnnl/op_desc.h"

#include <numeric>

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

/// Images of one column have the same bytes as images of one row, and oneDNN's loops over results
/// that share weights go along a row.
PrimitiveDesc NewPrimitiveDesc(const OpDesc& op, const dnnl::engine& engine) {
  if (const std::optional<OpDesc> rows = AlongRows(op)) {
    if (PrimitiveDesc turned = Ask(*rows, engine).Turned()) return turned;
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

std::optional<MemoryDesc> Turned(const MemoryDesc& md) {
  const size_t rank = md.get_dims().size();
  if (rank < kImageRank) return md;  // of channels alone
  std::vector<int> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[rank - 2], axes[rank - 1]);
  const MemoryDesc turned = md.permute_axes(axes, /*allow_empty=*/true);
  return turned ? std::optional(turned) : std::nullopt;
}

std::optional<OpDesc> AlongRows(const OpDesc& op) {
  if (op.kind != dnnl::primitive::kind::convolution &&
      op.kind != dnnl::primitive::kind::deconvolution)
    return std::nullopt;
  const auto is_column = [&](int arg) {
    const Dims dims = op.Find(arg)->md.get_dims();
    return dims.size() >= kImageRank && dims.back() == 1;
  };
  const Dims out = op.Find(DNNL_ARG_DST)->md.get_dims();
  if (op.strides.size() != 2 || out[2] == 1 || op.pad_begin[1] != 0 || op.pad_end[1] != 0 ||
      !is_column(DNNL_ARG_SRC) || !is_column(DNNL_ARG_WEIGHTS) || !is_column(DNNL_ARG_DST))
    return std::nullopt;
  OpDesc turned = op;
  for (Dims* dims : {&turned.strides, &turned.dilates, &turned.pad_begin, &turned.pad_end})
    std::swap(dims->front(), dims->back());
  std::vector<MemoryDesc*> layouts;
  for (OpArg& arg : turned.args) layouts.push_back(&arg.md);
  for (PostOpDesc& post_op : turned.post_ops) {
    if (post_op.kind == PostOpDesc::Kind::kBinary) layouts.push_back(&post_op.md);
  }
  for (MemoryDesc* md : layouts) {
    const std::optional<MemoryDesc> other = Turned(*md);
    if (!other) return std::nullopt;
    *md = *other;
  }
  return turned;
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

PrimitiveDesc PrimitiveDesc::Turned() const {
  if (answer_ == nullptr) return {};
  auto answer = std::make_shared<Answer>(*answer_);
  for (auto& [arg, md] : answer->args) {
    const std::optional<MemoryDesc> turned = tvm_byoc_dnnl::Turned(md);
    if (!turned) return {};
    md = *turned;
  }
  answer->is_turned = !answer->is_turned;
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
