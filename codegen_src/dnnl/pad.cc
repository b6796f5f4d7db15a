// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Round to nearest even on the bits of a float, for the two short formats.
uint16_t ToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

uint16_t ToFloat16(float value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  if (magnitude < 6.103515625e-05f) {  // subnormal: multiples of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0f));
  }
  int exponent;
  float fraction = std::frexp(magnitude, &exponent);                          // in [0.5, 1)
  auto mantissa = static_cast<uint16_t>(std::nearbyint(fraction * 2048.0f));  // in [1024, 2048]
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + mantissa);
}

template <typename T>
std::string Saturated(double value) {
  using Limits = std::numeric_limits<T>;
  double rounded = std::isnan(value) ? 0 : std::nearbyint(value);
  return Bytes(static_cast<T>(std::clamp<double>(rounded, Limits::min(), Limits::max())));
}

std::string EncodeElement(double value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Bytes(static_cast<float>(value));
    case DType::kFloat16:
      return Bytes(ToFloat16(static_cast<float>(value)));
    case DType::kBFloat16:
      return Bytes(ToBFloat16(static_cast<float>(value)));
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
  Fail(ErrorKind::kUnsupported, "padding of ", Name(dtype));
}

}  // namespace

void LowerPad(const NodeView& n) {
  Lowering& l = n.lowering;
  const MemoryDesc& source = l.Layout(n.In(0));  // whose order of axes the result keeps
  Place whole = l.Allocate(n.output, IsStrided(source) && !n.OutShape().empty()
                                         ? Ordered(n.OutShape(), n.OutDType(), AxisOrder(source))
                                         : Dense(n.OutShape(), n.OutDType()));
  if (n.Shape(0) != n.OutShape()) l.Fill(n.output, EncodeElement(n.a.value, n.OutDType()));
  if (ElementCount(n.Shape(0)) == 0) return;
  Place inside = whole;
  if (!n.OutShape().empty()) {
    Dims steps(n.OutShape().size(), 1);
    View view = *SliceView(whole.md, n.a.pad_begin, n.Shape(0), steps);
    inside.md = view.md;
    inside.offset += view.offset;
  }
  l.Copy(n.In(0), n.output, inside);
}

}  // namespace tvm_byoc_dnnl
