// SPDX-License-Identifier: Apache-2.0
// A small strict JSON (RFC 8259) reader and writer. The input is never trusted: nesting, size,
// numbers, escapes and UTF-8 are checked, duplicate keys are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/support/error.h"

namespace tvm_byoc_dnnl::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;  // in the order of the document

class Value {
 public:
  Value() = default;
  Value(bool value) : data_(value) {}                          // NOLINT(runtime/explicit)
  Value(int64_t value) : data_(value) {}                       // NOLINT(runtime/explicit)
  Value(int value) : data_(static_cast<int64_t>(value)) {}     // NOLINT(runtime/explicit)
  Value(size_t value) : data_(static_cast<int64_t>(value)) {}  // NOLINT(runtime/explicit)
  Value(double value) : data_(value) {}                        // NOLINT(runtime/explicit)
  Value(const char* value) : data_(std::string(value)) {}      // NOLINT(runtime/explicit)
  Value(std::string value) : data_(std::move(value)) {}        // NOLINT(runtime/explicit)
  Value(Array value) : data_(std::move(value)) {}              // NOLINT(runtime/explicit)
  Value(Object value) : data_(std::move(value)) {}             // NOLINT(runtime/explicit)

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }

  /// "null", "a boolean", "an integer" ... for error messages.
  const char* TypeName() const;

  /// Compact JSON. Non-finite numbers become the strings "inf", "-inf", "nan".
  std::string Dump() const;

 private:
  void DumpTo(std::string* out) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> data_;
};

/// The member of an object, or nullptr.
const Value* Find(const Object& object, std::string_view key);

/// Parses one document. Throws Error(kGraph) with the position of the first fault.
Value Parse(std::string_view text);

}  // namespace tvm_byoc_dnnl::json

namespace tvm_byoc_dnnl {

/// The words of a list that is separated by spaces.
std::vector<std::string> Words(const char* text);
bool HasWord(std::string_view text, std::string_view word);

// Typed access to a document. All throw Error(kGraph); `where` names the place in its message.

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

/// A number, or one of the words "inf", "-inf" and "nan".
double AsNumber(const json::Value& value, const std::string& where);

/// A number, a string, or a list of such.
template <typename T>
T As(const json::Value& value, const std::string& where) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return AsInteger(value, where);
  } else if constexpr (std::is_same_v<T, double>) {
    return AsNumber(value, where);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return AsString(value, where);
  } else {
    T list;
    for (const json::Value& item : AsArray(value, where))
      list.push_back(As<typename T::value_type>(item, where));
    return list;
  }
}

/// The member with this name, which must be there.
const json::Value& Field(const json::Object& object, const char* name, const std::string& where);

/// Throws for a member that is none of the words of `names`.
void AllowOnly(const json::Object& object, const char* names, const std::string& where);

}  // namespace tvm_byoc_dnnl
