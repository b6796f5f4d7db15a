// SPDX-License-Identifier: Apache-2.0
#include "common/support/json.h"

#include <cmath>

#include "check.h"

using tvm_byoc_dnnl::json::Array;
using tvm_byoc_dnnl::json::Find;
using tvm_byoc_dnnl::json::Object;
using tvm_byoc_dnnl::json::Parse;
using tvm_byoc_dnnl::json::Value;

TEST(RoundTrip) {
  for (const char* text :
       {"null", "true", "[]", "{}", "[1,-2,9223372036854775807,-9223372036854775808]",
        "{\"a\":[{\"b\":1.5}],\"c\":\"\\\"\\\\\"}", "[0.1,1e+300,-2.5e-08,3.0]",
        "\"\\u0001\\u001f\""}) {
    CHECK_EQUAL(Parse(text).Dump(), std::string(text));
  }
}

TEST(Whitespace) { CHECK_EQUAL(Parse(" \n{ \"a\" :\t[ 1 , 2 ] }\r\n").Dump(), "{\"a\":[1,2]}"); }

TEST(Escapes) {
  const Value value = Parse("\"\\u00e9\\ud83d\\ude00\\n\\/\"");
  CHECK_EQUAL(*value.As<std::string>(), "\xC3\xA9\xF0\x9F\x98\x80\n/");
}

TEST(NumbersKeepTheirType) {
  CHECK(Parse("1").As<int64_t>() != nullptr);
  CHECK(Parse("1.0").As<double>() != nullptr);
  CHECK(Parse("1e0").As<double>() != nullptr);
}

TEST(NonFiniteNumbersAreStrings) {
  CHECK_EQUAL(Value(Array{Value(INFINITY), Value(-INFINITY), Value(NAN)}).Dump(),
              "[\"inf\",\"-inf\",\"nan\"]");
}

TEST(FindsMembers) {
  const Value value = Parse("{\"a\":1,\"b\":2}");
  const Object& object = *value.As<Object>();
  CHECK_EQUAL(*Find(object, "b")->As<int64_t>(), 2);
  CHECK(Find(object, "c") == nullptr);
}

TEST(Refusals) {
  struct Row {
    std::string text;
    const char* message;
  };
  const Row rows[] = {
      {"", "expected a value"},
      {"[1,]", "expected a value"},
      {"[1", "expected ',' or ']'"},
      {"{\"a\" 1}", "expected ':'"},
      {"{a:1}", "expected a member name"},
      {"{\"a\":1,\"a\":2}", "the same member twice"},
      {"nul", "unknown word"},
      {"1 2", "unexpected text after the document"},
      {"01", "leading zero"},
      {"-", "expected a value"},
      {"+1", "expected a value"},
      {"1.", "expected a digit"},
      {"1e", "expected a digit"},
      {"9223372036854775808", "number out of range"},
      {"1e999", "number out of range"},
      {"NaN", "expected a value"},
      {"\"a", "unterminated string"},
      {"\"\n\"", "control character"},
      {"\"\\x\"", "unknown escape"},
      {"\"\\u12g4\"", "four hexadecimal digits"},
      {"\"\\u12", "four hexadecimal digits"},
      {"\"\\ud800\"", "lone surrogate"},
      {"\"\\udc00\"", "lone surrogate"},
      {"\"\\ud800\\u0041\"", "lone surrogate"},
      {"\"\x80\"", "invalid UTF-8"},
      {"\"\xC0\xAF\"", "invalid UTF-8"},
      {"\"\xED\xA0\x80\"", "invalid UTF-8"},
      {"\"\xF4\x90\x80\x80\"", "invalid UTF-8"},
      {"\"\xE2\x82", "invalid UTF-8"},
      {"\\", "expected a value"},
      {"\"\\", "unknown escape"},
      {std::string(1000, '['), "nested too deeply"},
      {std::string("1\0", 2), "unexpected text"},
  };
  for (const Row& row : rows) CHECK_THROWS(kGraph, row.message, Parse(row.text));
}

TEST(SizeLimit) {
  const std::string_view large("123", (size_t{1} << 30) + 1);  // nothing of it is read
  CHECK_THROWS(kGraph, "at most 1073741824", Parse(large));
}
