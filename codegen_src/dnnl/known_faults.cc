// SPDX-License-Identifier: Apache-2.0
// Found with oneDNN 3.2 on AVX-512 by random chains in random layouts against NumPy
// (tests/unit/test_native_post_ops.py); several of these read or write past the end of a buffer.
#include <algorithm>
#include <string>

#include "common/memory_plan.h"
#include "dnnl/candidate.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// The axes along which a second operand is broadcast to the result.
enum class Spread : uint8_t { kScalar, kPerChannel, kFull, kOther };

Spread SpreadOver(const Dims& operand, const Dims& result) {
  auto is_one = [](int64_t dim) { return dim == 1; };
  if (std::all_of(operand.begin(), operand.end(), is_one)) return Spread::kScalar;
  if (operand.size() > 1 && operand[0] == 1 && operand[1] == result[1] &&
      std::all_of(operand.begin() + 2, operand.end(), is_one)) {
    return Spread::kPerChannel;  // also when that is all of the result
  }
  return operand == result ? Spread::kFull : Spread::kOther;
}

/// The axis orders that oneDNN's broadcasts know. It compares strides exactly, those of axes of
/// size 1 included, and so do we.
enum class Order : uint8_t { kPlain, kChannelsLast, kBlocked, kOther };

Order OrderOf(const MemoryDesc& md) {
  if (md.get_format_kind() != dnnl::memory::format_kind::blocked) return Order::kOther;
  if (!IsStrided(md)) return Order::kBlocked;
  const Dims dims = md.get_dims();
  const Dims strides = md.get_strides();
  if (strides == DenseStrides(dims)) return Order::kPlain;
  const bool has_channels = dims.size() > 2;
  if (has_channels && strides == ChannelsLast(dims, DType::kFloat32).get_strides())
    return Order::kChannelsLast;
  return Order::kOther;
}

/// [N, C, 1, 1]: plain and channels-last are then the same order, and oneDNN takes the wrong one.
bool IsWithoutSpace(const Dims& dims) {
  return dims.size() > 2 &&
         std::all_of(dims.begin() + 2, dims.end(), [](int64_t dim) { return dim == 1; });
}

bool IsWrong(const OpDesc& op, const std::string& impl, Spread spread, const MemoryDesc& result) {
  if (spread == Spread::kScalar) return false;
  const Order order = OrderOf(result);
  const bool is_jit = impl.compare(0, 3, "jit") == 0;
  const bool is_full = spread == Spread::kFull;
  switch (op.kind) {
    case PrimitiveKind::matmul:
    case PrimitiveKind::reduction:
      return !is_full && order != Order::kPlain;
    case PrimitiveKind::softmax:  // takes every second operand as if along the softmax's axis
      return !is_full && (spread == Spread::kOther || op.axis != 1 || order == Order::kOther);
    case PrimitiveKind::binary:
      return !is_full && (spread == Spread::kOther || order == Order::kOther ||
                          IsWithoutSpace(result.get_dims()));
    case PrimitiveKind::resampling:
      return is_jit ? IsWithoutSpace(result.get_dims()) : order != Order::kPlain;
    default:
      return !is_full && order == Order::kOther;
  }
}

/// A matrix of one row: the stride of its rows may be any number, because there is no second row,
/// but the matrix product reads it as the distance of rows.
bool HasRowsOverEachOther(const MemoryDesc& result) {
  const Dims dims = result.get_dims();
  if (!IsStrided(result) || dims.size() < 2) return false;
  const size_t rows = dims.size() - 2;
  return dims[rows] == 1 && result.get_strides()[rows] < dims[rows + 1];
}

/// Whether it multiplies 8-bit integers. Without an exact instruction that is right for weights
/// that are small enough, and the graph may allow it for others.
bool MultipliesBytes(const OpDesc& op, const PrimitiveDesc& pd) {
  return IsProduct(op.kind) && IsByte(pd.Arg(DNNL_ARG_SRC));
}

/// What our kernels compute exactly and oneDNN does not. Without a kernel oneDNN's answer is taken.
const char* Inexact(const OpDesc& op, const PrimitiveDesc& pd, const Isa& isa) {
  const MemoryDesc from = pd.Arg(DNNL_ARG_SRC), to = pd.Arg(DNNL_ARG_DST);
  if (!isa.Vectors()) return nullptr;
  const auto has_log = [](const auto& operation) {
    return operation.alg == dnnl::algorithm::eltwise_log ||
           operation.alg == dnnl::algorithm::eltwise_soft_relu;
  };
  if (IsFloat(to) &&
      (has_log(op) || std::any_of(op.post_ops.begin(), op.post_ops.end(), has_log))) {
    return "its logarithms are off by up to 8e-6, and that of 1 may be below 0";
  }
  if (op.kind == PrimitiveKind::layer_normalization && (IsFloat(from) || IsByte(from)) &&
      (IsFloat(to) || IsByte(to))) {
    return "its mean of equal numbers is not their value";
  }
  if (op.kind == PrimitiveKind::reduction && op.alg == dnnl::algorithm::reduction_mean &&
      IsFloat(from) && IsFloat(to) && op.post_ops.empty()) {
    return "its mean of equal numbers is not their value";
  }
  return nullptr;
}

/// A binary operation on bytes whose result has the strides of another axis order.
bool ChangesLayoutOfBytes(const OpDesc& op, const PrimitiveDesc& pd) {
  if (op.kind != PrimitiveKind::binary) return false;
  const MemoryDesc source = pd.Arg(DNNL_ARG_SRC_0), result = pd.Arg(DNNL_ARG_DST);
  return (IsByte(source) || IsByte(result)) && source.get_strides() != result.get_strides();
}

/// Whether a softmax or a layer normalisation has a scale of its source. oneDNN multiplies the
/// result by it, and computes with the integers as they are: it means another operation.
bool ScalesItsResult(const OpDesc& op) {
  return IsNormalization(op.kind) &&
         std::any_of(op.scalings.begin(), op.scalings.end(),
                     [](const ScalingDesc& s) { return s.arg == DNNL_ARG_SRC && s.scale >= 0; });
}

/// Whether an operation is a bound that should keep a NaN; oneDNN answers with the bound.
bool IsBound(const Operation& op) {
  switch (op.alg) {
    case dnnl::algorithm::eltwise_relu:
      return !op.of_numbers && op.alpha == 0;  // one with a slope is no maximum
    case dnnl::algorithm::eltwise_clip:
    case dnnl::algorithm::eltwise_hardsigmoid:
    case dnnl::algorithm::binary_max:
    case dnnl::algorithm::binary_min:
      return !op.of_numbers;
    default:
      return false;
  }
}

}  // namespace

bool HidesNan(const OpDesc& op) {
  if (op.kind != PrimitiveKind::eltwise && op.kind != PrimitiveKind::binary) return false;
  return IsBound(op) || std::any_of(op.post_ops.begin(), op.post_ops.end(), IsBound);
}

const char* KnownFault(const OpDesc& op, const PrimitiveDesc& pd, const Isa& isa) {
  const MemoryDesc result = pd.Arg(DNNL_ARG_DST);
  if (MultipliesBytes(op, pd) && op.preferred != "saturating" && !isa.HasExactIntegerProducts()) {
    return "sums of 8-bit products are not exact on a CPU without VNNI";
  }
  if (IsRms(op)) return "it subtracts the mean, which this operation does not";
  if (ScalesItsResult(op)) return "it multiplies its result by the scale of its source";
  if (const char* inexact = Inexact(op, pd, isa)) return inexact;
  if (ChangesLayoutOfBytes(op, pd)) {
    return "it accepts a result in another layout, and writes the source's";
  }
  if (op.kind == PrimitiveKind::layer_normalization && !SameLayout(pd.Arg(DNNL_ARG_SRC), result)) {
    return "it accepts a result in another layout, and writes the source's";
  }
  if (op.kind == PrimitiveKind::matmul && HasRowsOverEachOther(result)) {
    return "it fails when it runs: its result's only row has a stride below its length";
  }
  const Dims dims = result.get_dims();
  if (op.kind == PrimitiveKind::binary && OrderOf(result) == Order::kOther &&
      pd.Arg(DNNL_ARG_SRC_1).get_dims() != dims) {
    return "its second operand broadcasts, over axes in an unusual order";
  }
  const std::string& impl = pd.impl();
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    if (op.post_ops[i].kind != PostOpDesc::Kind::kBinary) continue;
    const MemoryDesc operand = pd.Arg(PostOpArg(i));
    if (IsWrong(op, impl, SpreadOver(operand.get_dims(), dims), result)) {
      return "a post-op's operand broadcasts in a way that it gets wrong in this layout";
    }
  }
  return nullptr;
}

}  // namespace tvm_byoc_dnnl
