// SPDX-License-Identifier: Apache-2.0
// The kinds of nodes, as an enumeration of the rows in kind_rows.h.
#ifndef TVM_BYOC_DNNL_COMMON_KINDS_H_
#define TVM_BYOC_DNNL_COMMON_KINDS_H_

#include <cstdint>

namespace tvm_byoc_dnnl {

constexpr int kMany = 1 << 20;

constexpr const char* kEltwiseAlgs =
    "relu tanh elu square abs sqrt linear soft_relu hardsigmoid mish logistic exp gelu_tanh "
    "gelu_erf swish log clip pow round hardswish";
/// Of recurrent layers, in the order of byoc_activation (kernels/byoc_recurrent_plan.h).
constexpr const char* kActivations =
    "sigmoid tanh relu affine leaky_relu thresholded_relu scaled_tanh hard_sigmoid elu softsign "
    "softplus";
constexpr const char* kBinaryAlgs = "add sub mul div max min ge gt le lt eq ne";

enum class Kind : uint8_t {
#define KIND(Name, ...) k##Name,
#include "common/kind_rows.h"
#undef KIND
};

constexpr int kKindCount = 0
#define KIND(...) +1
#include "common/kind_rows.h"
#undef KIND
    ;

const char* Name(Kind kind);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_KINDS_H_
