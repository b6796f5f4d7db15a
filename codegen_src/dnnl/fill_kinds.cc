// SPDX-License-Identifier: Apache-2.0
// Results that are one number in whole or in part: padding, and what is computed of no elements.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "common/support/error.h"
#include "dnnl/kinds.h"

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

/// The bytes of one element: rounded as oneDNN rounds it, or saturated.
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

/// What nothing adds up to. A mean has none: ONNX Runtime gives 0, and PyTorch NaN.
std::optional<double> NeutralElement(const NodeView& n) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (n.node.kind == Kind::kMatmul) return 0;
  if (n.node.kind != Kind::kReduction) return std::nullopt;
  if (n.a.alg == "sum") return 0;
  if (n.a.alg == "mul") return 1;
  const DType dtype = n.OutDType();
  const bool has_infinity =
      dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (!has_infinity) return std::nullopt;
  if (n.a.alg == "max") return -kInfinity;
  if (n.a.alg == "min") return kInfinity;
  return std::nullopt;
}

}  // namespace

void LowerEmpty(const NodeView& n) {
  const std::optional<double> value = NeutralElement(n);
  if (!value) {
    Fail(ErrorKind::kUnsupported,
         "a source without elements has no result; give sizes of 1 or more");
  }
  Lowering& l = n.lowering;
  if (n.node.kind == Kind::kMatmul && n.OwnInputs() == 3) return ExpandTo(&l, n.In(2), n.output);
  l.Allocate(n.output, Dense(n.OutShape(), n.OutDType()));
  l.Fill(n.output, *value == 0 ? std::string(static_cast<size_t>(SizeOf(n.OutDType())), '\0')
                               : EncodeElement(*value, n.OutDType(), l.engine()));
}

static void LowerPad(const NodeView& n) {
  Lowering& l = n.lowering;
  const MemoryDesc& source = l.Layout(n.In(0));  // whose order of axes the result keeps
  Place whole = l.Allocate(n.output, IsStrided(source) && !n.OutShape().empty()
                                         ? Ordered(n.OutShape(), n.OutDType(), AxisOrder(source))
                                         : Dense(n.OutShape(), n.OutDType()));
  if (n.Shape(0) != n.OutShape())
    l.Fill(n.output, EncodeElement(n.a.value, n.OutDType(), l.engine()));
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

const KindRow kPadRow = {nullptr, LowerPad};

}  // namespace tvm_byoc_dnnl
