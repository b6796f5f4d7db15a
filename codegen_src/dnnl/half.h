// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 on CPUs where oneDNN does not have them: values are float32 there.
#ifndef TVM_BYOC_DNNL_DNNL_HALF_H_
#define TVM_BYOC_DNNL_DNNL_HALF_H_

#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// The dtype of a value whose tensor has this one: float32 for bfloat16 and float16 where oneDNN
/// does not have them.
DType ComputedIn(DType dtype);

/// Whether a tensor of the graph has such a dtype.
bool IsWidened(const Graph& graph);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_HALF_H_
