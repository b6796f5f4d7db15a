// SPDX-License-Identifier: Apache-2.0
// The JSON reader: refuses with a typed error, or what it read survives being written and read.
#include "common/support/error.h"
#include "common/support/json.h"
#include "fuzz.h"

using namespace tvm_byoc_dnnl;  // NOLINT: a test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  json::Value value;
  try {
    value = json::Parse(fuzz::Text(data, size));
  } catch (const Error& error) {
    fuzz::Require(error.kind() == ErrorKind::kGraph, error.what());
    return 0;
  }
  const std::string once = value.Dump();
  fuzz::Require(json::Parse(once).Dump() == once, "what was written reads differently: " + once);
  return 0;
}
