// SPDX-License-Identifier: Apache-2.0
#include "dnnl/op_desc.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "common/support/bytes.h"

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

PrimitiveDesc Ask(const OpDesc& op) {
  PrimitiveDesc result;
  dnnl::primitive_attr attr;
  try {
    attr = MakeAttr(op);
  } catch (const dnnl::error&) {  // e.g. an operand of a dtype or rank that no post-op takes
    return result;
  }
  dnnl_primitive_desc_t pd = nullptr;
  if (Create(op, attr.get(), &pd) == dnnl_success) result = PrimitiveDesc(op, pd);
  return result;
}

/// oneDNN's loops over results that share weights go along a row.
PrimitiveDesc NewPrimitiveDesc(const OpDesc& op) {
  if (const std::optional<OpDesc> row = AlongRows(op)) {
    if (PrimitiveDesc answer = Ask(*row).About(op)) return answer;
  }
  return Ask(op);
}

/// A descriptor has 10 to 60 kB; the largest networks have a thousand different ones.
constexpr size_t kDescriptors = 2048;

/// Calls back with each argument that has a layout: those of the operation, then of its post-ops.
template <typename Op, typename Visit>
void ForEachLayout(Op& op, const Visit& visit) {
  for (auto& arg : op.args) visit(arg.arg, arg.md);
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    if (op.post_ops[i].kind == PostOpDesc::Kind::kBinary) visit(PostOpArg(i), op.post_ops[i].md);
  }
}

constexpr size_t kImageRank = 4;

void AppendDims(const Dims& dims, std::string* key) {
  Append(dims.size(), key);
  for (int64_t dim : dims) Append(dim, key);
}

/// oneDNN's comparison of layouts skips the strides of dims of one element, but its choice of an
/// implementation reads them.
void AppendStrides(std::string* key, const MemoryDesc& md) {
  if (md && md.get_format_kind() == dnnl::memory::format_kind::blocked) {
    AppendDims(md.get_strides(), key);
  }
}

/// All that the result depends on except the layouts; the number of threads is part of it.
std::string KeyOf(const OpDesc& op) {
  std::string key;
  Append(omp_get_max_threads(), &key);
  Append(op.kind, &key);
  Append(op.alg, &key);
  for (const Dims* dims : {&op.strides, &op.dilates, &op.pad_begin, &op.pad_end, &op.kernel}) {
    AppendDims(*dims, &key);
  }
  for (float value : {op.alpha, op.beta, op.k, op.p, op.epsilon}) Append(value, &key);
  for (int64_t value : {op.axis, op.group_size, op.local_size}) Append(value, &key);
  Append(op.flags, &key);
  Append(op.args.size(), &key);
  for (const OpArg& arg : op.args) {
    Append(arg.arg, &key);
    if (arg.md) AppendDims(arg.md.get_dims(), &key);
    AppendStrides(&key, arg.md);
  }
  Append(op.post_ops.size(), &key);
  for (const PostOpDesc& post_op : op.post_ops) {
    Append(post_op.kind, &key);
    Append(post_op.alg, &key);
    Append(post_op.alpha, &key);
    Append(post_op.beta, &key);
    AppendStrides(&key, post_op.md);
  }
  for (const ScalingDesc& s : op.scalings) {
    for (int value : {s.arg, static_cast<int>(s.scale >= 0), static_cast<int>(s.zero_point >= 0),
                      s.scale_mask, s.zero_point_mask}) {
      Append(value, &key);
    }
  }
  return key;
}

std::vector<MemoryDesc> LayoutsOf(const OpDesc& op) {
  std::vector<MemoryDesc> layouts;
  ForEachLayout(op, [&](int, const MemoryDesc& md) { layouts.push_back(md); });
  return layouts;
}

}  // namespace

const dnnl::engine& CpuEngine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives all
  return *engine;
}

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
  bool has_rows = true;
  ForEachLayout(flat, [&](int, MemoryDesc& md) {
    const std::optional<MemoryDesc> row = InOneRow(md);
    has_rows &= row.has_value();
    if (row) md = *row;
  });
  return has_rows ? std::optional(flat) : std::nullopt;
}

const OpArg* OpDesc::Find(int arg) const {
  const auto found =
      std::find_if(args.begin(), args.end(), [&](const OpArg& own) { return own.arg == arg; });
  return found == args.end() ? nullptr : &*found;
}
OpArg* OpDesc::Find(int arg) { return const_cast<OpArg*>(std::as_const(*this).Find(arg)); }

PrimitiveDesc::PrimitiveDesc(const OpDesc& op, dnnl_primitive_desc_t pd) {
  auto answer = std::make_shared<Answer>();
  answer_ = answer;
  answer->pd.reset(pd);
  answer->impl = answer->pd.impl_info_str();
  auto ask = [&](int arg) {
    answer->args.emplace_back(arg, answer->pd.query_md(dnnl::query::exec_arg_md, arg));
  };
  ForEachLayout(op, [&](int arg, const MemoryDesc&) { ask(arg); });
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
  bool has_dims = true;
  ForEachLayout(op, [&](int arg, const MemoryDesc& like) {
    for (auto& [known, md] : answer->args) {
      if (known == arg) has_dims &= bool(md = md.reshape(like.get_dims(), /*allow_empty=*/true));
    }
  });
  if (!has_dims) return {};
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

PrimitiveDesc DescriptorCache::Get(const OpDesc& op, const std::function<PrimitiveDesc()>& create) {
  const std::string key = KeyOf(op);
  std::vector<MemoryDesc> layouts = LayoutsOf(op);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const PrimitiveDesc* found = Find(key, layouts)) return *found;
  }
  PrimitiveDesc pd = create();
  std::lock_guard<std::mutex> lock(mutex_);
  if (Find(key, layouts) == nullptr) {  // another thread may have been faster
    if (entries_.size() == capacity_) entries_.clear();
    entries_.emplace(key, Entry{std::move(layouts), pd});
  }
  return pd;
}

void DescriptorCache::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
}

size_t DescriptorCache::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

const PrimitiveDesc* DescriptorCache::Find(const std::string& key,
                                           const std::vector<MemoryDesc>& layouts) const {
  const auto [first, last] = entries_.equal_range(key);
  const auto found =
      std::find_if(first, last, [&](const auto& entry) { return entry.second.layouts == layouts; });
  return found == last ? nullptr : &found->second.pd;
}

static DescriptorCache& Answers() {
  static auto* cache = new DescriptorCache(kDescriptors);  // outlives all
  return *cache;
}

PrimitiveDesc AskOneDnn(const OpDesc& op) {
  return Answers().Get(op, [&] { return NewPrimitiveDesc(op); });
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
