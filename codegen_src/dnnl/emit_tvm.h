// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_TVM_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_TVM_H_

#include <string>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// The code that makes a function of TVM of emitted source, in the C interface of tvm-ffi; it
/// stands behind the function `<name>_create` and needs dnnl_byoc_tvm.h.
std::string EmitEntryPoints(const Graph& graph);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_TVM_H_
