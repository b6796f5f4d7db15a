// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_H_

#include <string>

#include "dnnl/lowering.h"
#include "graph.h"

namespace tvm_byoc_dnnl {

/// The program as source (C99, and C++ as well) that makes the same calls of oneDNN; it includes
/// dnnl_byoc_runtime.h. Throws Error(kUnsupported) for what cannot be said in source.
std::string EmitSource(const Graph& graph, const Program& program);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_H_
