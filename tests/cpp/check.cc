// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <cstdio>
#include <utility>
#include <vector>

namespace check {
namespace {

std::vector<std::pair<const char*, void (*)()>>& Tests() {
  static std::vector<std::pair<const char*, void (*)()>> tests;
  return tests;
}

int failures = 0;
const char* current = "";
std::string scope;

}  // namespace

Registration::Registration(const char* name, void (*body)()) { Tests().emplace_back(name, body); }

Scope::Scope(const std::string& what) { scope = " on " + what; }
Scope::~Scope() { scope.clear(); }

void Failed(const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "%s:%d: %s%s: %s\n", file, line, current, scope.c_str(), message.c_str());
  ++failures;
}

int RunAll() {
  for (const auto& [name, body] : Tests()) {
    current = name;
    try {
      body();
    } catch (const std::exception& error) {
      Failed("(test)", 0, std::string("unexpected exception: ") + error.what());
    }
  }
  std::printf("%zu tests, %d failed checks\n", Tests().size(), failures);
  return failures == 0 && !Tests().empty() ? 0 : 1;
}

}  // namespace check

int main() { return check::RunAll(); }
