// SPDX-License-Identifier: Apache-2.0
// A product of 8-bit integers keeps its scales and zero points, as attributes of its primitive; a
// binary operation, a softmax and a layer normalisation keep their scales. For all other nodes the
// operands are converted to float32 before, and the result is converted after.
#include <algorithm>
#include <utility>

#include "common/support/error.h"
#include "dnnl/kinds.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {
namespace {

bool IsConvolution(Kind kind) { return kind == Kind::kConvolution || kind == Kind::kDeconvolution; }
bool IsProduct(Kind kind) { return IsConvolution(kind) || kind == Kind::kMatmul; }

bool IsInteger(DType dtype) { return IsByte(dtype) || dtype == DType::kInt32; }

/// Whether the weights have an axis of groups.
bool HasGroups(const Node& node, const Lowering& lowering) {
  return IsConvolution(node.kind) &&
         lowering.shape(node.inputs[1]).size() > lowering.shape(node.inputs[0]).size();
}

/// The axes over which these values extend, as a mask of oneDNN's.
int MaskOf(int value, const Scaling& scaling, bool is_grouped, const Lowering& lowering) {
  if (value < 0 || scaling.axis < 0 || lowering.shape(value)[0] == 1) return 0;
  // Axis 1 of grouped weights stands for the channels of all groups.
  return is_grouped && scaling.axis == 1 ? 3 : 1 << scaling.axis;
}

ScalingDesc Describe(int arg, const Scaling& scaling, bool is_grouped, const Lowering& lowering) {
  return {arg, scaling.scale, scaling.zero_point,
          MaskOf(scaling.scale, scaling, is_grouped, lowering),
          MaskOf(scaling.zero_point, scaling, is_grouped, lowering)};
}

/// Whether a product of 8-bit integers may have these attributes: one scale and one zero point for
/// all or, for the weights, one for each channel of the result. Primitives take fewer (no uint8
/// weights, zero points of weights only in a matmul); then oneDNN has none.
bool IsOfProduct(const Node& node, const Lowering& lowering) {
  if (!IsProduct(node.kind) || !IsByte(lowering.dtype(node.inputs[0])) ||
      !IsByte(lowering.dtype(node.inputs[1]))) {
    return false;
  }
  const auto rank = lowering.shape(node.inputs[1]).size();
  const int channels = node.kind == Kind::kMatmul  ? 1 << (rank - 1)
                       : HasGroups(node, lowering) ? 3
                                                   : 1;
  for (const ScalingDesc& s : Scalings(node, lowering)) {
    for (int mask : {s.scale_mask, s.zero_point_mask}) {
      if (mask != 0 && (s.arg != DNNL_ARG_WEIGHTS || mask != channels)) return false;
    }
  }
  return true;
}

/// Whether oneDNN's binary primitive has these attributes: one scale for each of two operands, of
/// which the second one may broadcast.
bool IsOfBinary(const Node& node, const Lowering& lowering) {
  if (node.kind != Kind::kBinary || !node.output_scaling.IsNone() ||
      lowering.shape(node.inputs[0]) != lowering.shape(node.output)) {
    return false;
  }
  for (int i = 0; i < 2; ++i) {
    const Scaling& scaling = node.scalings[i];
    if (!IsByte(lowering.dtype(node.inputs[i])) || scaling.zero_point >= 0 || scaling.axis >= 0) {
      return false;
    }
  }
  return true;
}

/// Whether a softmax or a layer normalisation may have these attributes: one scale for its source,
/// and one scale and zero point for its result, which only our kernel takes.
bool IsOfNormalization(const Node& node, const Lowering& lowering) {
  const Scaling& source = node.scalings[0];
  return (node.kind == Kind::kSoftmax || node.kind == Kind::kLayerNormalization) &&
         IsByte(lowering.dtype(node.inputs[0])) && source.zero_point < 0 && source.axis < 0 &&
         node.output_scaling.axis < 0;
}

}  // namespace

std::vector<ScalingDesc> Scalings(const Node& node, const Lowering& lowering, bool is_swapped) {
  std::vector<ScalingDesc> result;
  const int second = node.kind == Kind::kBinary ? DNNL_ARG_SRC_1 : DNNL_ARG_WEIGHTS;
  int args[] = {DNNL_ARG_SRC, second};
  if (is_swapped) std::swap(args[0], args[1]);
  for (size_t i = 0; i < std::min(node.scalings.size(), std::size(args)); ++i) {
    if (node.scalings[i].IsNone()) continue;
    result.push_back(
        Describe(args[i], node.scalings[i], i == 1 && HasGroups(node, lowering), lowering));
  }
  if (!node.output_scaling.IsNone()) {
    result.push_back(Describe(DNNL_ARG_DST, node.output_scaling, false, lowering));
  }
  return result;
}

/// The values of a scaling in float32, in a shape that broadcasts over that of the operand.
int Lowering::Spread(int value, const Scaling& scaling, const Dims& operand, bool is_grouped) {
  const Dims own = shape(value);
  Dims spread(operand.size(), 1);
  if (own[0] != 1) {
    const auto axis = static_cast<size_t>(scaling.axis);
    spread[axis] = operand[axis];
    if (is_grouped && axis == 1) spread[0] = operand[0];
  }
  int real = value;
  if (dtype(value) != DType::kFloat32) {
    real = NewValue(own, DType::kFloat32, IsConstant(value));
    Convert(value, {}, real, {}, false);
  }
  return Reshaped(real, spread);
}

/// Dequantises with a zero point for each channel, which oneDNN's reorder takes and then cannot do.
void Lowering::ConvertInSteps(int from, const Scaling& scaling, int to, bool is_grouped) {
  const Dims& dims = shape(from);
  auto next = [&](const std::vector<int>& operands) {
    return NewValue(dims, DType::kFloat32, AllConstant(operands));
  };
  const int whole = next({from});
  Convert(from, {}, whole, {}, false);
  const int less = scaling.scale < 0 ? to : next({from, scaling.zero_point});
  LowerBinary(*this, {dnnl::algorithm::binary_sub}, whole,
              Spread(scaling.zero_point, scaling, dims, is_grouped), less);
  if (scaling.scale < 0) return;
  LowerBinary(*this, {dnnl::algorithm::binary_mul}, less,
              Spread(scaling.scale, scaling, dims, is_grouped), to);
}

void Lowering::Convert(int from, const Scaling& of_source, int to, const Scaling& of_result,
                       bool is_grouped) {
  if (of_source.zero_point >= 0 && ElementCount(shape(of_source.zero_point)) != 1 &&
      dtype(to) == DType::kFloat32 && of_result.IsNone()) {
    return ConvertInSteps(from, of_source, to, is_grouped);
  }
  OpDesc op;
  op.kind = dnnl::primitive::kind::reorder;
  const MemoryDesc& source = Layout(from);
  op.args = {{DNNL_ARG_FROM, from, source}, {DNNL_ARG_TO, to, Dense(shape(to), dtype(to))}};
  if (!of_source.IsNone())
    op.scalings.push_back(Describe(DNNL_ARG_FROM, of_source, is_grouped, *this));
  if (!of_result.IsNone())
    op.scalings.push_back(Describe(DNNL_ARG_TO, of_result, is_grouped, *this));
  OpDesc alike = op, dense = op;
  if (IsStrided(source) && IsCompact(source))  // in the order of axes in which it lies
    alike.args[1].md = Strided(shape(to), dtype(to), source.get_strides());
  dense.args[0].md = Dense(shape(from), dtype(from));
  if (!Emit({alike, op, dense}, /*accept_reference=*/true)) {
    const bool is_plain = of_source.IsNone() && of_result.IsNone();
    FailUnsupported(Cat("oneDNN cannot convert ", Name(dtype(from)), " to ", Name(dtype(to)),
                        is_plain ? " here" : " with these scales and zero points"));
  }
}

/// Whether all of these values (-1: none) are known before the first call.
bool Lowering::AllConstant(const std::vector<int>& values) const {
  return std::all_of(values.begin(), values.end(),
                     [&](int value) { return value < 0 || IsConstant(value); });
}

void Lowering::LowerScaled(const Node& node) {
  if (node.kind == Kind::kReorder && node.post_ops.empty()) {
    return Convert(node.inputs[0], node.scalings[0], node.output, node.output_scaling, false);
  }
  Node plain = node;
  auto to_float = [&](size_t i) {
    const int input = node.inputs[i];
    const Scaling& scaling = node.scalings[i];
    const bool constant = AllConstant({input, scaling.scale, scaling.zero_point});
    plain.inputs[i] = NewValue(shape(input), DType::kFloat32, constant);
    plain.scalings[i] = {};
    Convert(input, scaling, plain.inputs[i], {}, i == 1 && HasGroups(node, *this));
  };
  for (size_t i = 2; i < node.scalings.size(); ++i) {  // a bias has no attributes
    if (!node.scalings[i].IsNone()) to_float(i);
  }
  const bool has_attributes =
      IsOfProduct(plain, *this) || IsOfBinary(plain, *this) || IsOfNormalization(plain, *this);
  if (has_attributes && EmitFused(plain, plain.post_ops.size())) return;
  if (IsProduct(node.kind) && dtype(node.output) == DType::kInt32 && node.output_scaling.IsNone()) {
    FailUnsupported(
        "oneDNN has no exact product of integers with these scales and zero points here");
  }
  for (int i = 0; i < node.own_inputs; ++i) {
    if (IsInteger(dtype(plain.inputs[i])) || !plain.scalings[i].IsNone()) to_float(i);
  }
  if (node.output_scaling.IsNone() && !IsInteger(dtype(node.output))) return LowerNode(plain);
  LowerInFloat(plain);
}

/// Computes the result in float32, and converts it.
void Lowering::LowerInFloat(const Node& node) {
  Node plain = node;
  plain.output = NewValue(shape(node.output), DType::kFloat32, IsConstant(node.output));
  plain.output_scaling = {};
  LowerNode(plain);
  Convert(plain.output, {}, node.output, node.output_scaling, false);
}

}  // namespace tvm_byoc_dnnl
