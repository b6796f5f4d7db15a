// SPDX-License-Identifier: Apache-2.0
// Primitives that oneDNN accepts and computes wrong. A descriptor with a known fault is treated
// as if oneDNN had refused it, so that no path (modules, emitted source, symbolic shapes) meets it.
#ifndef TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_
#define TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_

#include "dnnl/machine.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// The known fault of a primitive on an instruction set; nullptr if there is none.
const char* KnownFault(const OpDesc& op, const PrimitiveDesc& pd, const Isa& isa);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_
