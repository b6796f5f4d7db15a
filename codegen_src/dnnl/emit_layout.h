// SPDX-License-Identifier: Apache-2.0
// How emitted source comes by its memory descriptors: by their strides, or from a descriptor that
// it has already. Blocked layouts have no constructor in oneDNN, they can only be asked for.
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_

#include <optional>
#include <string>
#include <vector>

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// The descriptors `r->md[i]` of the source so far. A copy is a state to go back to.
class EmittedLayouts {
 public:
  /// The expression for a layout; appends the call that makes it to `out` if it is new. Nothing if
  /// it cannot be had from what is there.
  std::optional<std::string> Name(const MemoryDesc& md, std::string* out);

  /// Like Name, but asks the step's primitive descriptor for its argument if the layout is new.
  std::optional<std::string> NameOfArg(const MemoryDesc& md, const PrimitiveDesc& pd, int arg,
                                       std::string* out);

  size_t size() const { return known_.size(); }

 private:
  std::string Add(const MemoryDesc& md, const std::string& call, std::string* out);
  std::optional<std::string> Derived(const MemoryDesc& md) const;

  std::vector<MemoryDesc> known_;
};

/// "(const dnnl_dims_t){1, 64}" is not C++: a named array instead.
std::string DimsArray(const std::string& name, const Dims& dims);

/// "DNNL_ARG_SRC"
std::string ArgName(int arg);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_
