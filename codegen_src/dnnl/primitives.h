// SPDX-License-Identifier: Apache-2.0
// oneDNN's functions that create primitive descriptors: one table, from which they are called and
// printed as source.
#ifndef TVM_BYOC_DNNL_DNNL_PRIMITIVES_H_
#define TVM_BYOC_DNNL_DNNL_PRIMITIVES_H_

#include <dnnl.hpp>
#include <string>
#include <vector>

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// Calls the function for this kind of primitive.
dnnl_status_t Create(const OpDesc& op, dnnl_engine_t engine, const_dnnl_primitive_attr_t attr,
                     dnnl_primitive_desc_t* pd);

/// The same call as source, which sets `step->pd`; `layouts` are the expressions for the layouts of
/// the operation's arguments, in their order. Throws Error(kUnsupported) for a kind without a row.
std::string PrintCreate(const OpDesc& op, const std::vector<std::string>& layouts);

/// "0.5f", which reads back as exactly this number.
std::string PrintNumber(float value);

std::string PrintAlgorithm(dnnl::algorithm alg);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_PRIMITIVES_H_
