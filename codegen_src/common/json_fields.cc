// SPDX-License-Identifier: Apache-2.0
#include "common/json_fields.h"

#include <limits>

#include "common/graph_tables.h"

namespace tvm_byoc_dnnl {

const json::Object& AsObject(const json::Value& value, const std::string& where) {
  return As<json::Object>(value, "an object", where);
}
const json::Array& AsArray(const json::Value& value, const std::string& where) {
  return As<json::Array>(value, "an array", where);
}
const std::string& AsString(const json::Value& value, const std::string& where) {
  return As<std::string>(value, "a string", where);
}
int64_t AsInteger(const json::Value& value, const std::string& where) {
  return As<int64_t>(value, "an integer", where);
}

double AsNumber(const json::Value& value, const std::string& where) {
  if (const int64_t* integer = value.As<int64_t>()) return static_cast<double>(*integer);
  if (const std::string* word = value.As<std::string>()) {
    if (*word == "inf") return std::numeric_limits<double>::infinity();
    if (*word == "-inf") return -std::numeric_limits<double>::infinity();
    if (*word == "nan") return std::numeric_limits<double>::quiet_NaN();
  }
  return As<double>(value, "a number, \"inf\", \"-inf\" or \"nan\"", where);
}

const json::Value& Field(const json::Object& object, const char* name, const std::string& where) {
  const json::Value* value = json::Find(object, name);
  if (value == nullptr) Fail(ErrorKind::kGraph, where, ": the field \"", name, "\" is missing");
  return *value;
}

void AllowOnly(const json::Object& object, const char* names, const std::string& where) {
  for (const json::Member& member : object) {
    if (!HasWord(names, member.first)) {
      Fail(ErrorKind::kGraph, where, ": unknown field \"", member.first, "\", expected ", names);
    }
  }
}

namespace {

template <typename T>
std::vector<T> AsList(const json::Value& value, const std::string& where,
                      T (*as)(const json::Value&, const std::string&)) {
  std::vector<T> result;
  for (const json::Value& item : AsArray(value, where)) result.push_back(as(item, where));
  return result;
}

std::string AsText(const json::Value& value, const std::string& where) {
  return AsString(value, where);
}

}  // namespace

std::vector<int64_t> AsIntegers(const json::Value& value, const std::string& where) {
  return AsList(value, where, AsInteger);
}
std::vector<double> AsNumbers(const json::Value& value, const std::string& where) {
  return AsList(value, where, AsNumber);
}
std::vector<std::string> AsStrings(const json::Value& value, const std::string& where) {
  return AsList(value, where, AsText);
}

}  // namespace tvm_byoc_dnnl
