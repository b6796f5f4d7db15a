// SPDX-License-Identifier: Apache-2.0
// The name and version that saved modules contain.
#ifndef TVM_BYOC_DNNL_RUNTIME_VERSION_H_
#define TVM_BYOC_DNNL_RUNTIME_VERSION_H_

#include <string>

namespace tvm_byoc_dnnl {

/// This library, as saved modules name it.
std::string WriterName();

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_RUNTIME_VERSION_H_
