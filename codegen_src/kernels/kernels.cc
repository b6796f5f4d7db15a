// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.h"

#include "byoc_append.h"
#include "byoc_attention.h"
#include "byoc_batch_norm.h"
#include "byoc_batch_norm_product.h"
#include "byoc_compressed_matmul.h"
#include "byoc_compressed_pack.h"
#include "byoc_convert.h"
#include "byoc_direct.h"
#include "byoc_direct_pack.h"
#include "byoc_fill.h"
#include "byoc_flush.h"
#include "byoc_gather.h"
#include "byoc_groups.h"
#include "byoc_groups_pack.h"
#include "byoc_integer.h"
#include "byoc_integer_pack.h"
#include "byoc_log.h"
#include "byoc_lookup.h"
#include "byoc_normalize.h"
#include "byoc_product.h"
#include "byoc_product_pack.h"
#include "byoc_recurrent.h"
#include "byoc_recurrent_pack.h"
#include "byoc_widen.h"
#include "byoc_winograd.h"
#include "byoc_winograd_pack.h"
#if BYOC_HAS_AMX
#include "byoc_split.h"
#include "byoc_split_pack.h"
#include "byoc_split_winograd.h"
#include "byoc_split_winograd_pack.h"
#endif

namespace tvm_byoc_dnnl {

const Kernel kAppend = {"append", byoc_append};
const Kernel kAttention = {"attention", byoc_attention};
const Kernel kBatchNorm = {"batch_norm", byoc_batch_norm};
const Kernel kBatchNormProduct = {"batch_norm_product", byoc_batch_norm_product};
const Kernel kCompressedMatmul = {"compressed_matmul", byoc_compressed_matmul};
const Kernel kCompressedPack = {"compressed_pack", byoc_compressed_pack};
const Kernel kConvert = {"convert", byoc_convert};
const Kernel kDirect = {"direct", byoc_direct};
const Kernel kDirectPack = {"direct_pack", byoc_direct_pack, true};
const Kernel kFill = {"fill", byoc_fill};
const Kernel kFlush = {"flush", byoc_flush};
const Kernel kGather = {"gather", byoc_gather};
const Kernel kGroups = {"groups", byoc_groups};
const Kernel kGroupsPack = {"groups_pack", byoc_groups_pack, true};
const Kernel kInteger = {"integer", byoc_integer};
const Kernel kIntegerPack = {"integer_pack", byoc_integer_pack};
const Kernel kLog = {"log", byoc_log};
const Kernel kLookup = {"lookup", byoc_lookup};
const Kernel kNormalize = {"normalize", byoc_normalize};
const Kernel kProduct = {"product", byoc_product};
const Kernel kProductPack = {"product_pack", byoc_product_pack, true};
const Kernel kRecurrent = {"recurrent", byoc_recurrent};
const Kernel kRecurrentPack = {"recurrent_pack", byoc_recurrent_pack};
#if BYOC_HAS_AMX
const Kernel kSplit = {"split", byoc_split};
const Kernel kSplitPack = {"split_pack", byoc_split_pack};
const Kernel kSplitWinograd = {"split_winograd", byoc_split_winograd};
const Kernel kSplitWinogradPack = {"split_winograd_pack", byoc_split_winograd_pack};
#else  // never offered (HasTiles)
const Kernel kSplit = {"split", nullptr};
const Kernel kSplitPack = {"split_pack", nullptr};
const Kernel kSplitWinograd = {"split_winograd", nullptr};
const Kernel kSplitWinogradPack = {"split_winograd_pack", nullptr};
#endif
const Kernel kWiden = {"widen", byoc_widen};
const Kernel kWinograd = {"winograd", byoc_winograd};
const Kernel kWinogradPack = {"winograd_pack", byoc_winograd_pack, true};

}  // namespace tvm_byoc_dnnl
