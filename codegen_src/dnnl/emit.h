// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_DNNL_EMIT_H_
#define TVM_BYOC_DNNL_DNNL_EMIT_H_

#include <string>

#include "common/graph.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

enum class SourceForm {
  kStandalone,  // includes dnnl_byoc_runtime.h and needs oneDNN alone; `<name>_create` is its entry
  kTvmFunction  // includes dnnl_byoc_tvm.h; exports `<name>` and `__init_<name>` to TVM
};

/// The program as source (C99, and C++ as well) that makes the same calls of oneDNN. Throws
/// Error(kUnsupported) for a program that cannot be written as source.
std::string EmitSource(const Graph& graph, const Program& program, SourceForm form);

/// Its end where it is a function of TVM: the signature of `graph` and the functions that TVM
/// calls.
std::string EmitEntryPoints(const Graph& graph);

/// A name, safe inside a comment and inside a string literal.
std::string Printable(std::string text);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_EMIT_H_
