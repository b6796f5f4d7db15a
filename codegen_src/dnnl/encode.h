// SPDX-License-Identifier: Apache-2.0
// Numbers as the bytes of an element.
#ifndef TVM_BYOC_DNNL_DNNL_ENCODE_H_
#define TVM_BYOC_DNNL_DNNL_ENCODE_H_

#include <dnnl.hpp>
#include <string>

#include "common/graph.h"

namespace tvm_byoc_dnnl {

/// The bytes of one element: rounded as oneDNN rounds it, or saturated.
std::string EncodeElement(double value, DType dtype, const dnnl::engine& engine);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_ENCODE_H_
