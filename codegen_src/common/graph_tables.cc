// SPDX-License-Identifier: Apache-2.0
#include "common/graph_tables.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace tvm_byoc_dnnl {
namespace {

struct DTypeRow {
  const char* name;
  int64_t size;
};
constexpr DTypeRow kDTypes[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2},
                                {"int32", 4},   {"int8", 1},    {"uint8", 1},
                                {"bool", 1},    {"float64", 8}, {"int64", 8}};

constexpr KindSpec kKinds[kKindCount] = {
    {"convolution", 2, 3, "strides dilations pad_begin pad_end", ""},
    {"deconvolution", 2, 3, "strides dilations pad_begin pad_end", ""},
    {"matmul", 2, 3, "", ""},
    {"pooling", 1, 1, "alg kernel strides dilations pad_begin pad_end",
     "max avg_include_padding avg_exclude_padding"},
    {"eltwise", 1, 1, "alg alpha beta", kEltwiseAlgs},
    {"binary", 2, 2, "alg", kBinaryAlgs},
    {"prelu", 2, 2, "", ""},
    {"softmax", 1, 1, "alg axis", "accurate log"},
    {"batch_normalization", 5, 5, "epsilon", ""},
    {"layer_normalization", 1, 3, "epsilon", ""},
    {"lrn", 1, 1, "alg local_size alpha beta k", "across_channels within_channel"},
    {"reduction", 1, 1, "alg p epsilon",
     "max min sum mul mean norm_lp_max norm_lp_sum norm_lp_power_p_max norm_lp_power_p_sum"},
    {"resampling", 1, 1, "alg", "nearest linear"},
    {"concat", 1, kMany, "axis", ""},
    {"shuffle", 1, 1, "axis group_size", ""},
    {"reorder", 1, 1, "", ""},
    {"reshape", 1, 1, "", ""},
    {"permute", 1, 1, "axes", ""},
    {"slice", 1, 1, "begin steps", ""},
    {"expand", 1, 1, "", ""},
    {"pad", 1, 1, "pad_begin pad_end value", ""},
    {"gather", 2, 2, "alg axis", "checked from_end clip wrap"},
};

}  // namespace

const char* Name(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
int64_t SizeOf(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }
const char* Name(Kind kind) { return SpecOf(kind).name; }
const KindSpec& SpecOf(Kind kind) { return kKinds[static_cast<int>(kind)]; }

std::optional<Kind> FindKind(std::string_view name) {
  for (int i = 0; i < kKindCount; ++i) {
    if (name == kKinds[i].name) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

std::optional<DType> FindDType(std::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

const AttrField& FieldOf(const std::string& attr) {
  static const std::map<std::string, AttrField> fields = {
      {"strides", {&Attrs::strides}},
      {"dilations", {&Attrs::dilations}},
      {"pad_begin", {&Attrs::pad_begin}},
      {"pad_end", {&Attrs::pad_end}},
      {"kernel", {&Attrs::kernel}},
      {"axes", {&Attrs::axes}},
      {"begin", {&Attrs::begin}},
      {"steps", {&Attrs::steps}},
      {"axis", {nullptr, &Attrs::axis}},
      {"group_size", {nullptr, &Attrs::group_size}},
      {"local_size", {nullptr, &Attrs::local_size}},
      {"alpha", {nullptr, nullptr, &Attrs::alpha}},
      {"beta", {nullptr, nullptr, &Attrs::beta}},
      {"k", {nullptr, nullptr, &Attrs::k}},
      {"p", {nullptr, nullptr, &Attrs::p}},
      {"epsilon", {nullptr, nullptr, &Attrs::epsilon}},
      {"value", {nullptr, nullptr, &Attrs::value}},
  };
  return fields.at(attr);
}

std::vector<std::string> Words(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool HasWord(const char* text, const std::string& word) {
  std::vector<std::string> words = Words(text);
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace tvm_byoc_dnnl
