// SPDX-License-Identifier: Apache-2.0
// What oneDNN accepts and computes wrong without a word. A descriptor with a known fault is treated
// as if oneDNN had refused it, so that no path (modules, emitted source, symbolic shapes) meets it.
#ifndef TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_
#define TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_

#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {

/// What would go wrong; nullptr where nothing is known to.
const char* KnownFault(const OpDesc& op, const PrimitiveDesc& pd);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_KNOWN_FAULTS_H_
