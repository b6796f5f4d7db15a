// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. A target returns for whatever bytes; an error of a kind that is not
// promised, a broken round trip or a sanitizer's report ends the process.
#ifndef TVM_BYOC_DNNL_TESTS_FUZZ_H_
#define TVM_BYOC_DNNL_TESTS_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

}  // namespace fuzz

#endif  // TVM_BYOC_DNNL_TESTS_FUZZ_H_
