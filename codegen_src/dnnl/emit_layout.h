// SPDX-License-Identifier: Apache-2.0
// The memory descriptors of emitted source: made of strides, or of a descriptor that is there
// already. oneDNN has no constructor of blocked layouts; a primitive descriptor must return them.
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_

#include <optional>
#include <string>
#include <vector>

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// The descriptors `r->md[i]` of the source so far. A copy can restore this state.
class EmittedLayouts {
 public:
  /// The expression for a layout; appends the call that makes it to `out` if it is new. Nothing if
  /// the layout cannot be made of those.
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

/// Appends the calls that AskOneDnn makes for `op`, as source that sets `step->pd`; false
/// if a layout is not there yet. Throws Error(kUnsupported) for a kind without a row in the table.
bool EmitPrimitiveDesc(const OpDesc& op, EmittedLayouts* layouts, std::string* out);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_LAYOUT_H_
