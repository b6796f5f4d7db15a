// SPDX-License-Identifier: Apache-2.0
// The little that our C++ tests need: named tests, checks that print both sides, and errors of a
// kind.
#ifndef TVM_BYOC_DNNL_TESTS_CHECK_H_
#define TVM_BYOC_DNNL_TESTS_CHECK_H_

#include <sstream>
#include <string>

#include "common/support/error.h"

namespace check {

struct Registration {
  Registration(const char* name, void (*body)());
};

/// What checks are about while it lives, as "avx2": printed with those that fail.
class Scope {
 public:
  explicit Scope(const std::string& what);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

/// Counts and prints a failed check.
void Failed(const char* file, int line, const std::string& message);

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<int>(value);
  } else {
    out << value;
  }
  return out.str();
}

template <typename A, typename B>
void Equal(const char* file, int line, const char* text, const A& got, const B& expected) {
  if (!(got == expected)) {
    Failed(file, line, std::string(text) + ": got " + Show(got) + ", expected " + Show(expected));
  }
}

/// `body` throws an Error of this kind whose message contains `part`.
template <typename Body>
void Throws(const char* file, int line, tvm_byoc_dnnl::ErrorKind kind, const std::string& part,
            const Body& body) {
  try {
    body();
  } catch (const tvm_byoc_dnnl::Error& error) {
    if (error.kind() != kind) {
      Failed(file, line, std::string("wrong kind ") + Name(error.kind()) + ": " + error.what());
    } else if (std::string(error.what()).find(part) == std::string::npos) {
      Failed(file, line, "message \"" + std::string(error.what()) + "\" lacks \"" + part + "\"");
    }
    return;
  }
  Failed(file, line, "nothing was thrown, expected an error with \"" + part + "\"");
}

}  // namespace check

#define TEST(name)                                                          \
  static void Test_##name();                                                \
  static const check::Registration registration_##name(#name, Test_##name); \
  static void Test_##name()

#define CHECK(condition) \
  if (!(condition)) check::Failed(__FILE__, __LINE__, #condition)
#define CHECK_EQUAL(got, expected) check::Equal(__FILE__, __LINE__, #got, got, expected)
#define CHECK_THROWS(kind, part, ...) \
  check::Throws(__FILE__, __LINE__, tvm_byoc_dnnl::ErrorKind::kind, part, [&] { __VA_ARGS__; })

#endif  // TVM_BYOC_DNNL_TESTS_CHECK_H_
