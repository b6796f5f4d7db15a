// SPDX-License-Identifier: Apache-2.0
// Typed access to a JSON document. All throw Error(kGraph); `where` names the place in its message.
#ifndef TVM_BYOC_DNNL_COMMON_JSON_FIELDS_H_
#define TVM_BYOC_DNNL_COMMON_JSON_FIELDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/support/error.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {

template <typename T>
const T& As(const json::Value& value, const char* expected, const std::string& where) {
  const T* typed = value.As<T>();
  if (typed == nullptr) {
    Fail(ErrorKind::kGraph, where, ": got ", value.TypeName(), ", expected ", expected);
  }
  return *typed;
}

const json::Object& AsObject(const json::Value& value, const std::string& where);
const json::Array& AsArray(const json::Value& value, const std::string& where);
const std::string& AsString(const json::Value& value, const std::string& where);
int64_t AsInteger(const json::Value& value, const std::string& where);
std::vector<int64_t> AsIntegers(const json::Value& value, const std::string& where);
std::vector<std::string> AsStrings(const json::Value& value, const std::string& where);

/// A number, or one of the words "inf", "-inf" and "nan".
double AsNumber(const json::Value& value, const std::string& where);
std::vector<double> AsNumbers(const json::Value& value, const std::string& where);

/// The member with this name, which must be there.
const json::Value& Field(const json::Object& object, const char* name, const std::string& where);

/// Throws for a member that is none of the words of `names`.
void AllowOnly(const json::Object& object, const char* names, const std::string& where);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_JSON_FIELDS_H_
