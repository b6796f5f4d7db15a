// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <optional>

#include "common/support/error.h"
#include "dnnl/encode.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

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

}  // namespace tvm_byoc_dnnl
