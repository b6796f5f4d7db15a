// SPDX-License-Identifier: Apache-2.0
#include "dnnl/descriptor_cache.h"

#include <omp.h>

#include <utility>

namespace tvm_byoc_dnnl {
namespace {

template <typename T>
void Append(std::string* key, T value) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void Append(std::string* key, const Dims& dims) {
  Append(key, dims.size());
  for (int64_t dim : dims) Append(key, dim);
}

/// oneDNN's comparison of layouts skips the strides of dims of one element, but its choice of an
/// implementation reads them.
void AppendStrides(std::string* key, const MemoryDesc& md) {
  if (md && md.get_format_kind() == dnnl::memory::format_kind::blocked) {
    Append(key, md.get_strides());
  }
}

/// All that the result depends on except the layouts; the number of threads is part of it.
std::string KeyOf(const OpDesc& op) {
  std::string key;
  Append(&key, omp_get_max_threads());
  Append(&key, op.kind);
  Append(&key, op.alg);
  for (const Dims* dims : {&op.strides, &op.dilates, &op.pad_begin, &op.pad_end, &op.kernel}) {
    Append(&key, *dims);
  }
  for (float value : {op.alpha, op.beta, op.k, op.p, op.epsilon}) Append(&key, value);
  for (int64_t value : {op.axis, op.group_size, op.local_size}) Append(&key, value);
  Append(&key, op.flags);
  Append(&key, op.args.size());
  for (const OpArg& arg : op.args) {
    Append(&key, arg.arg);
    if (arg.md) Append(&key, arg.md.get_dims());
    AppendStrides(&key, arg.md);
  }
  Append(&key, op.post_ops.size());
  for (const PostOpDesc& post_op : op.post_ops) {
    Append(&key, post_op.kind);
    Append(&key, post_op.alg);
    Append(&key, post_op.alpha);
    Append(&key, post_op.beta);
    AppendStrides(&key, post_op.md);
  }
  for (const ScalingDesc& s : op.scalings) {
    for (int value : {s.arg, static_cast<int>(s.scale >= 0), static_cast<int>(s.zero_point >= 0),
                      s.scale_mask, s.zero_point_mask}) {
      Append(&key, value);
    }
  }
  return key;
}

std::vector<MemoryDesc> LayoutsOf(const OpDesc& op) {
  std::vector<MemoryDesc> layouts;
  for (const OpArg& arg : op.args) layouts.push_back(arg.md);
  for (const PostOpDesc& post_op : op.post_ops) {
    if (post_op.kind == PostOpDesc::Kind::kBinary) layouts.push_back(post_op.md);
  }
  return layouts;
}

}  // namespace

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
    if (size_ == capacity_) ClearLocked();
    entries_[key].push_back({std::move(layouts), pd});
    ++size_;
  }
  return pd;
}

void DescriptorCache::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  ClearLocked();
}

size_t DescriptorCache::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return size_;
}

void DescriptorCache::ClearLocked() {
  entries_.clear();
  size_ = 0;
}

const PrimitiveDesc* DescriptorCache::Find(const std::string& key,
                                           const std::vector<MemoryDesc>& layouts) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (entry.layouts == layouts) return &entry.pd;
  }
  return nullptr;
}

}  // namespace tvm_byoc_dnnl
