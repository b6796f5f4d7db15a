// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "common/graph.h"

namespace tvm_byoc_dnnl {
namespace {

// DLPack's codes.
constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6;

struct DTypeRow {
  const char* name;
  int64_t size;
  int dlpack_code;
};
constexpr DTypeRow kDTypes[] = {
    {"float32", 4, kFloat}, {"float16", 2, kFloat}, {"bfloat16", 2, kBfloat},
    {"int32", 4, kInt},     {"int8", 1, kInt},      {"uint8", 1, kUInt},
    {"bool", 1, kBool},     {"float64", 8, kFloat}, {"int64", 8, kInt}};

constexpr KindSpec kKinds[kKindCount] = {
#define KIND(Name, text, least, most, attrs, algs, ...) {text, least, most, attrs, algs},
#include "common/kind_rows.h"
#undef KIND
};

}  // namespace

const char* Name(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
int64_t SizeOf(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }

bool IsStoredAs(DType dtype, int dlpack_code, int bits) {
  if (dtype == DType::kBool && dlpack_code == kUInt) return bits == 1;  // TVM's older spelling
  const DTypeRow& row = kDTypes[static_cast<int>(dtype)];
  return dlpack_code == row.dlpack_code && (dtype == DType::kBool || bits == row.size * 8);
}

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
      {"strides", &Attrs::strides},
      {"dilations", &Attrs::dilations},
      {"pad_begin", &Attrs::pad_begin},
      {"pad_end", &Attrs::pad_end},
      {"kernel", &Attrs::kernel},
      {"axes", &Attrs::axes},
      {"begin", &Attrs::begin},
      {"steps", &Attrs::steps},
      {"table", &Attrs::table},
      {"axis", &Attrs::axis},
      {"group_size", &Attrs::group_size},
      {"local_size", &Attrs::local_size},
      {"window", &Attrs::window},
      {"scale_bits", &Attrs::scale_bits},
      {"alpha", &Attrs::alpha},
      {"beta", &Attrs::beta},
      {"k", &Attrs::k},
      {"p", &Attrs::p},
      {"epsilon", &Attrs::epsilon},
      {"value", &Attrs::value},
      {"scale", &Attrs::scale},
      {"softcap", &Attrs::softcap},
      {"clip", &Attrs::clip},
      {"alphas", &Attrs::alphas},
      {"betas", &Attrs::betas},
      {"roles", &Attrs::roles},
      {"directions", &Attrs::directions},
      {"activations", &Attrs::activations},
      {"results", &Attrs::results},
  };
  return fields.at(attr);
}

}  // namespace tvm_byoc_dnnl
