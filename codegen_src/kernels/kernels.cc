// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.h"

#include "byoc_attention.h"
#include "byoc_batch_norm.h"
#include "byoc_compressed_matmul.h"
#include "byoc_compressed_plan.h"
#include "byoc_copy.h"
#include "byoc_direct.h"
#include "byoc_groups.h"
#include "byoc_integer.h"
#include "byoc_integer_plan.h"
#include "byoc_normalize.h"
#include "byoc_product.h"
#include "byoc_recurrent.h"
#include "byoc_recurrent_plan.h"
#include "byoc_winograd.h"
#if BYOC_HAS_AMX
#include "byoc_split.h"
#include "byoc_split_parts.h"
#include "byoc_split_winograd.h"
#endif

namespace tvm_byoc_dnnl {

const Kernel kAppend = {"append", "copy", byoc_append};
const Kernel kAttention = {"attention", "attention", byoc_attention};
const Kernel kBatchNorm = {"batch_norm", "batch_norm", byoc_batch_norm};
const Kernel kBatchNormProduct = {"batch_norm_product", "batch_norm", byoc_batch_norm_product};
const Kernel kCompressedMatmul = {"compressed_matmul", "compressed_matmul", byoc_compressed_matmul};
const Kernel kCompressedPack = {"compressed_pack", "compressed_plan", byoc_compressed_pack};
const Kernel kConvert = {"convert", "copy", byoc_convert};
const Kernel kDirect = {"direct", "direct", byoc_direct};
const Kernel kDirectPack = {"direct_pack", "direct", byoc_direct_pack, true};
const Kernel kFill = {"fill", "copy", byoc_fill};
const Kernel kFlush = {"flush", "copy", byoc_flush};
const Kernel kGather = {"gather", "copy", byoc_gather};
const Kernel kGroups = {"groups", "groups", byoc_groups};
const Kernel kGroupsPack = {"groups_pack", "groups", byoc_groups_pack, true};
const Kernel kInteger = {"integer", "integer", byoc_integer};
const Kernel kIntegerPack = {"integer_pack", "integer_plan", byoc_integer_pack};
const Kernel kLog = {"log", "normalize", byoc_log};
const Kernel kLookup = {"lookup", "copy", byoc_lookup};
const Kernel kNormalize = {"normalize", "normalize", byoc_normalize};
const Kernel kProduct = {"product", "product", byoc_product};
const Kernel kProductPack = {"product_pack", "product", byoc_product_pack, true};
const Kernel kRecurrent = {"recurrent", "recurrent", byoc_recurrent};
const Kernel kRecurrentPack = {"recurrent_pack", "recurrent_plan", byoc_recurrent_pack};
#if BYOC_HAS_AMX
const Kernel kSplit = {"split", "split", byoc_split};
const Kernel kSplitPack = {"split_pack", "split_parts", byoc_split_pack};
const Kernel kSplitWinograd = {"split_winograd", "split_winograd", byoc_split_winograd};
const Kernel kSplitWinogradPack = {"split_winograd_pack", "split_winograd",
                                   byoc_split_winograd_pack};
#else  // never offered (HasTiles)
const Kernel kSplit = {"split", "split", nullptr};
const Kernel kSplitPack = {"split_pack", "split_parts", nullptr};
const Kernel kSplitWinograd = {"split_winograd", "split_winograd", nullptr};
const Kernel kSplitWinogradPack = {"split_winograd_pack", "split_winograd", nullptr};
#endif
const Kernel kWiden = {"widen", "copy", byoc_widen};
const Kernel kWinograd = {"winograd", "winograd", byoc_winograd};
const Kernel kWinogradPack = {"winograd_pack", "winograd", byoc_winograd_pack, true};

}  // namespace tvm_byoc_dnnl
