// SPDX-License-Identifier: Apache-2.0
// The kernels of ours that a step may run, by name.
#ifndef TVM_BYOC_DNNL_KERNELS_KERNELS_H_
#define TVM_BYOC_DNNL_KERNELS_KERNELS_H_

#include "byoc_fill.h"
#include "byoc_gather.h"
#include "byoc_kernel.h"

namespace tvm_byoc_dnnl {

/// One file: byoc_<name>.h defines the function byoc_<name>.
struct Kernel {
  const char* name;
  byoc_kernel run;
};

inline constexpr Kernel kFill = {"fill", byoc_fill};
inline constexpr Kernel kGather = {"gather", byoc_gather};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_KERNELS_KERNELS_H_
