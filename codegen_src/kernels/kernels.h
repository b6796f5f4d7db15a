// SPDX-License-Identifier: Apache-2.0
// The kernels of ours that a step may run, by name.
#ifndef TVM_BYOC_DNNL_KERNELS_KERNELS_H_
#define TVM_BYOC_DNNL_KERNELS_KERNELS_H_

#include "byoc_kernel.h"

namespace tvm_byoc_dnnl {

/// byoc_<header>.h defines the function byoc_<name>.
struct Kernel {
  const char* name;
  const char* header;
  byoc_kernel run;
  bool packs_floats = false;  // makes weights that are numbers of float32 again
};

/// Defined in kernels.cc, the only file that includes their code.
extern const Kernel kAppend, kAttention, kBatchNorm, kBatchNormProduct, kCompressedMatmul,
    kCompressedPack, kConvert, kDirect, kDirectPack, kFill, kFlush, kGather, kGroups, kGroupsPack,
    kInteger, kIntegerPack, kLog, kLookup, kNormalize, kProduct, kProductPack, kRecurrent,
    kRecurrentPack, kSplit, kSplitPack, kSplitWinograd, kSplitWinogradPack, kWiden, kWinograd,
    kWinogradPack;

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_KERNELS_KERNELS_H_
