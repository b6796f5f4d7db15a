// SPDX-License-Identifier: Apache-2.0
// The kinds of nodes, one row each. To a row belong a rule, `Check<Name>` in graph_rules.cc, and
// what an engine does with it.
#ifndef TVM_BYOC_DNNL_COMMON_KINDS_H_
#define TVM_BYOC_DNNL_COMMON_KINDS_H_

#include <cstdint>

namespace tvm_byoc_dnnl {

constexpr int kMany = 1 << 20;

constexpr const char* kEltwiseAlgs =
    "relu tanh elu square abs sqrt linear soft_relu hardsigmoid mish logistic exp gelu_tanh "
    "gelu_erf swish log clip pow round hardswish";
constexpr const char* kBinaryAlgs = "add sub mul div max min ge gt le lt eq ne";

/// Name; in portable graphs: name, least and most inputs of its own, attributes (`?` behind one
/// that may be left out), values of `alg`.
#define TVM_BYOC_KINDS(ROW)                                                                   \
  ROW(Convolution, "convolution", 2, 3, "strides dilations pad_begin pad_end alg?",           \
      "auto direct winograd_2x2")                                                             \
  ROW(Deconvolution, "deconvolution", 2, 3, "strides dilations pad_begin pad_end", "")        \
  ROW(Matmul, "matmul", 2, 3, "", "")                                                         \
  ROW(Pooling, "pooling", 1, 1, "alg kernel strides dilations pad_begin pad_end",             \
      "max avg_include_padding avg_exclude_padding")                                          \
  ROW(Eltwise, "eltwise", 1, 1, "alg alpha beta", kEltwiseAlgs)                               \
  ROW(Binary, "binary", 2, 2, "alg", kBinaryAlgs)                                             \
  ROW(PRelu, "prelu", 2, 2, "", "")                                                           \
  ROW(Softmax, "softmax", 1, 1, "alg axis", "accurate log")                                   \
  ROW(BatchNormalization, "batch_normalization", 5, 5, "epsilon", "")                         \
  ROW(LayerNormalization, "layer_normalization", 1, 3, "epsilon", "")                         \
  ROW(Lrn, "lrn", 1, 1, "alg local_size alpha beta k", "across_channels within_channel")      \
  ROW(Reduction, "reduction", 1, 1, "alg p epsilon",                                          \
      "max min sum mul mean norm_lp_max norm_lp_sum norm_lp_power_p_max norm_lp_power_p_sum") \
  ROW(Resampling, "resampling", 1, 1, "alg", "nearest linear")                                \
  ROW(Concat, "concat", 1, kMany, "axis", "")                                                 \
  ROW(Shuffle, "shuffle", 1, 1, "axis group_size", "")                                        \
  ROW(Reorder, "reorder", 1, 1, "", "")                                                       \
  ROW(Reshape, "reshape", 1, 1, "", "")                                                       \
  ROW(Permute, "permute", 1, 1, "axes", "")                                                   \
  ROW(Slice, "slice", 1, 1, "begin steps", "")                                                \
  ROW(Expand, "expand", 1, 1, "", "")                                                         \
  ROW(Pad, "pad", 1, 1, "pad_begin pad_end value", "")                                        \
  ROW(Gather, "gather", 2, 2, "alg axis", "checked from_end clip wrap")

enum class Kind : uint8_t {
#define TVM_BYOC_KIND(Name, ...) k##Name,
  TVM_BYOC_KINDS(TVM_BYOC_KIND)
#undef TVM_BYOC_KIND
};

#define TVM_BYOC_KIND(...) +1
constexpr int kKindCount = TVM_BYOC_KINDS(TVM_BYOC_KIND);
#undef TVM_BYOC_KIND

const char* Name(Kind kind);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_KINDS_H_
