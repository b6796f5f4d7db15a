// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_CALL_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_CALL_H_

#include <string>

#include "dnnl/emit_layout.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// Appends the calls that AskOneDnn makes for `op`, as source that sets `step->pd`; false
/// if a layout is not there yet. Throws Error(kUnsupported) for a kind without a row in the table.
bool EmitPrimitiveDesc(const OpDesc& op, EmittedLayouts* layouts, std::string* out);

/// A name, safe inside a comment and inside a string literal.
std::string Printable(std::string text);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_CALL_H_
