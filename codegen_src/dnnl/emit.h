// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/graph.h"
#include "dnnl/lowering.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// The program as source (C99, and C++ as well) that makes the same calls of oneDNN: a function of
/// TVM, which includes dnnl_byoc_tvm.h and exports `<name>` and `__init_<name>`; or a part of a
/// program, which includes dnnl_byoc_runtime.h and is entered by `<name>_create`. Throws
/// Error(kUnsupported) for a program that cannot be written as source.
std::string EmitSource(const Graph& graph, const Program& program, bool as_function);

/// The memory descriptors `r->md[i]` of the source so far: made of strides, or of a descriptor that
/// is there already, since oneDNN has no constructor of blocked layouts. A copy can restore this
/// state.
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
