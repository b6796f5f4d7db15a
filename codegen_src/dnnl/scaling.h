// SPDX-License-Identifier: Apache-2.0
// Scales and zero points of a node's operands, as attributes of its primitive.
#ifndef TVM_BYOC_DNNL_DNNL_SCALING_H_
#define TVM_BYOC_DNNL_DNNL_SCALING_H_

#include <vector>

#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {

/// Whether any operand or the result has a scale or a zero point.
bool IsScaled(const Node& node);

/// Those of the node's operands and of its result, as attributes. `is_swapped`: the primitive takes
/// the first two operands in the other order.
std::vector<ScalingDesc> Scalings(const Node& node, const Lowering& lowering,
                                  bool is_swapped = false);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_SCALING_H_
