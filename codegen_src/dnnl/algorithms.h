// SPDX-License-Identifier: Apache-2.0
#ifndef TVM_BYOC_DNNL_DNNL_ALGORITHMS_H_
#define TVM_BYOC_DNNL_DNNL_ALGORITHMS_H_

#include <dnnl.hpp>
#include <string>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// oneDNN's algorithm for the `alg` of a node of this kind.
dnnl::algorithm ToDnnl(Kind kind, const std::string& alg);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_ALGORITHMS_H_
