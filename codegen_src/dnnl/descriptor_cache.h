// SPDX-License-Identifier: Apache-2.0
// Primitive descriptors by their descriptions. A layer is created when its call is annotated,
// again with each post-op, with its whole region, and when the region is loaded; and networks
// contain equal layers. oneDNN generates code for each answer, which takes long.
#ifndef TVM_BYOC_DNNL_DNNL_DESCRIPTOR_CACHE_H_
#define TVM_BYOC_DNNL_DNNL_DESCRIPTOR_CACHE_H_

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// Any thread may ask at any time. A full cache starts again from empty.
class DescriptorCache {
 public:
  explicit DescriptorCache(size_t capacity) : capacity_(capacity) {}

  /// The result of `create` for an equal description; it may be an empty descriptor.
  PrimitiveDesc Get(const OpDesc& op, const std::function<PrimitiveDesc()>& create);

  /// Descriptors that a plan has live on.
  void Clear();

  size_t size() const;

 private:
  struct Entry {
    std::vector<MemoryDesc> layouts;
    PrimitiveDesc pd;
  };
  void ClearLocked();
  const PrimitiveDesc* Find(const std::string& key, const std::vector<MemoryDesc>& layouts) const;

  const size_t capacity_;
  mutable std::mutex mutex_;
  size_t size_ = 0;
  std::unordered_map<std::string, std::vector<Entry>> entries_;  // by all but the layouts
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_DESCRIPTOR_CACHE_H_
