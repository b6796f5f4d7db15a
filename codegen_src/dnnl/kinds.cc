// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr KindRow kRows[kKindCount] = {
    {Kind::kConvolution, DescribeConvolution, nullptr},
    {Kind::kDeconvolution, DescribeDeconvolution, nullptr},
    {Kind::kMatmul, DescribeMatmul, nullptr},
    {Kind::kPooling, DescribePooling, nullptr},
    {Kind::kEltwise, DescribeEltwise, nullptr},
    {Kind::kBinary, DescribeBinary, LowerBinary},
    {Kind::kPRelu, DescribePRelu, LowerPRelu},
    {Kind::kSoftmax, DescribeSoftmax, nullptr},
    {Kind::kBatchNormalization, DescribeBatchNormalization, nullptr},
    {Kind::kLayerNormalization, DescribeLayerNormalization, nullptr},
    {Kind::kLrn, DescribeLrn, nullptr},
    {Kind::kReduction, DescribeReduction, LowerReduction},
    {Kind::kResampling, DescribeResampling, nullptr},
    {Kind::kConcat, nullptr, LowerConcat},
    {Kind::kShuffle, DescribeShuffle, LowerShuffle},
    {Kind::kReorder, DescribeReorder, nullptr},
    {Kind::kReshape, nullptr, LowerReshape},
    {Kind::kPermute, nullptr, LowerPermute},
    {Kind::kSlice, nullptr, LowerSlice},
    {Kind::kExpand, nullptr, LowerExpand},
    {Kind::kPad, nullptr, LowerPad},
    {Kind::kGather, nullptr, LowerGather},
};

constexpr bool InOrder() {
  for (int i = 0; i < kKindCount; ++i) {
    if (kRows[i].kind != static_cast<Kind>(i)) return false;
  }
  return true;
}
static_assert(InOrder(), "one row per kind, in the order of the enumeration");

}  // namespace

const KindRow& RowOf(Kind kind) { return kRows[static_cast<int>(kind)]; }

}  // namespace tvm_byoc_dnnl
