// SPDX-License-Identifier: Apache-2.0
// Typed errors. The kind's name is the name of the Python class that the error becomes.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace tvm_byoc_dnnl {

enum class ErrorKind {
  kGraph,        // a portable graph is malformed
  kInput,        // an argument of a call does not fit
  kUnsupported,  // the library has no implementation for this, here
  kArtifact,     // saved bytes are damaged or of another version
  kLibrary,      // a library that computes is missing, or not one that we know
};

inline const char* Name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kGraph:
      return "ByocGraphError";
    case ErrorKind::kInput:
      return "ByocInputError";
    case ErrorKind::kUnsupported:
      return "ByocUnsupportedError";
    case ErrorKind::kArtifact:
      return "ByocArtifactError";
    case ErrorKind::kLibrary:
      return "ByocNativeLibraryError";
  }
  return "InternalError";
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Everything streamed into one string.
template <typename... Parts>
std::string Cat(Parts&&... parts) {
  std::ostringstream out;
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}

template <typename... Parts>
[[noreturn]] void Fail(ErrorKind kind, Parts&&... parts) {
  throw Error(kind, Cat(std::forward<Parts>(parts)...));
}

/// "[1, 3, 224]"
template <typename Sequence>
std::string Join(const Sequence& items) {
  std::ostringstream out;
  out << '[';
  const char* separator = "";
  for (const auto& item : items) {
    out << separator << item;
    separator = ", ";
  }
  out << ']';
  return out.str();
}

}  // namespace tvm_byoc_dnnl
