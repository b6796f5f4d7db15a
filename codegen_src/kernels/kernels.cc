// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.h"

#include "byoc_fill.h"
#include "byoc_gather.h"
#include "byoc_winograd.h"
#include "byoc_winograd_pack.h"

namespace tvm_byoc_dnnl {

const Kernel kFill = {"fill", byoc_fill};
const Kernel kGather = {"gather", byoc_gather};
const Kernel kWinograd = {"winograd", byoc_winograd};
const Kernel kWinogradPack = {"winograd_pack", byoc_winograd_pack};

}  // namespace tvm_byoc_dnnl
