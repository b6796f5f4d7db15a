// SPDX-License-Identifier: Apache-2.0
#include "dnnl/encode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/support/error.h"
#include "dnnl/layout.h"

namespace tvm_byoc_dnnl {
namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// As oneDNN rounds it.
std::string Rounded(float value, DType dtype, const dnnl::engine& engine) {
  std::string bytes(static_cast<size_t>(SizeOf(dtype)), '\0');
  dnnl::memory from(Dense({1}, DType::kFloat32), engine, &value);
  dnnl::memory to(Dense({1}, dtype), engine, bytes.data());
  dnnl::stream stream(engine);
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  return bytes;
}

template <typename T>
std::string Saturated(double value) {
  using Limits = std::numeric_limits<T>;
  double rounded = std::isnan(value) ? 0 : std::nearbyint(value);
  return Bytes(static_cast<T>(std::clamp<double>(rounded, Limits::min(), Limits::max())));
}

}  // namespace

std::string EncodeElement(double value, DType dtype, const dnnl::engine& engine) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
      return Rounded(static_cast<float>(value), dtype, engine);
    case DType::kInt32:
      return Saturated<int32_t>(value);
    case DType::kInt8:
      return Saturated<int8_t>(value);
    case DType::kUInt8:
      return Saturated<uint8_t>(value);
    case DType::kBool:
      return Bytes(static_cast<uint8_t>(value != 0));
    case DType::kFloat64:
    case DType::kInt64:
      break;
  }
  Fail(ErrorKind::kUnsupported, "a number as an element of ", Name(dtype));
}

}  // namespace tvm_byoc_dnnl
