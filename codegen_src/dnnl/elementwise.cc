// SPDX-License-Identifier: Apache-2.0
// Operations on each element of float32 by a kernel of ours: logarithms, and bounds that a NaN
// passes. Its arguments lie as those of the primitive whose place it takes.
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_elementwise.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

constexpr Kernel kElementwise = {"elementwise", "elementwise", byoc_elementwise};

/// The operation itself, as the first one on the source, and its post-ops.
std::vector<PostOpDesc> OperationsOf(const OpDesc& op) {
  PostOpDesc own;
  own.operation() = op;
  if (const OpArg* second = op.Find(DNNL_ARG_SRC_1)) {
    own.kind = PostOpDesc::Kind::kBinary;
    own.value = second->value;
    own.md = second->md;
  }
  std::vector<PostOpDesc> operations = {own};
  operations.insert(operations.end(), op.post_ops.begin(), op.post_ops.end());
  return operations;
}

/// Whether a layout of float32 holds its elements and nothing else.
bool IsWhole(const MemoryDesc& md) {
  const auto elements = static_cast<size_t>(ElementCount(md.get_dims()));
  return !IsAny(md) && md.get_size() == elements * sizeof(float);
}

/// How the elements of a layout follow each other, for operands per channel or without any;
/// nothing where the channels do not lie next to each other.
std::optional<byoc_elementwise_params> PixelsOf(const MemoryDesc& md, bool has_channels,
                                                byoc_isa isa) {
  byoc_elementwise_params p{};
  p.isa = isa;
  p.count = ElementCount(md.get_dims());
  p.channels = byoc_lanes(isa);
  p.blocks = 1;
  if (has_channels) {
    const std::optional<byoc_strides> strides = StridesOf(md, byoc_lanes(isa));
    if (!strides) return std::nullopt;
    p.channels = strides->lanes;
    p.blocks = md.get_dims()[1] / p.channels;
  }
  p.pixels = p.count / byoc_max(p.channels * p.blocks, 1);
  if (p.blocks > 1) p.pixels /= md.get_dims()[0];
  p.pixels = byoc_max(p.pixels, 1);
  return p;
}

}  // namespace

std::vector<Candidate> OfferElementwise(const Candidate& primitive, const Lowering& values) {
  const OpDesc& op = primitive.op;
  const std::optional<byoc_isa> isa = values.isa().Vectors();
  const bool is_of_elements = op.kind == PrimitiveKind::eltwise || op.kind == PrimitiveKind::binary;
  if (!isa || !is_of_elements || !op.scalings.empty()) return {};
  if (primitive.pd && !HidesNan(op)) return {};
  const bool is_float = std::all_of(op.args.begin(), op.args.end(), [&](const OpArg& arg) {
    return values.dtype(arg.value) == DType::kFloat32;
  });
  if (!is_float) return {};

  // Where an argument lies: as for the primitive, or like the result.
  const auto layout = [&](int arg, const MemoryDesc& md, const MemoryDesc& usual) {
    if (primitive.pd) return primitive.pd.Arg(arg);
    if (!IsAny(md)) return md;
    return md.get_dims() == usual.get_dims() ? usual : Dense(md.get_dims(), DType::kFloat32);
  };
  OpArg src = *op.Find(DNNL_ARG_SRC), dst = *op.Find(DNNL_ARG_DST);
  const MemoryDesc dense = Dense(values.shape(src.value), DType::kFloat32);
  src.md = layout(DNNL_ARG_SRC, src.md, dense);
  if (!IsWhole(src.md)) {
    if (primitive.pd) return {};
    src.md = dense;
  }
  dst.md = primitive.pd ? primitive.pd.Arg(DNNL_ARG_DST) : src.md;
  if (!SameLayout(src.md, dst.md)) return {};

  const std::vector<PostOpDesc> operations = OperationsOf(op);
  Operands operands;
  for (size_t i = 0; i < operations.size(); ++i) {
    const int arg = i == 0 ? DNNL_ARG_SRC_1 : PostOpArg(i - 1);
    const bool has_operand = operations[i].kind == PostOpDesc::Kind::kBinary;
    operands.layouts.push_back(has_operand ? layout(arg, operations[i].md, dst.md) : MemoryDesc());
    if (has_operand && values.dtype(operations[i].value) != DType::kFloat32) return {};
  }
  operands.place = [&](const PostOpDesc&, const MemoryDesc& md, byoc_post_op*) {
    return SameLayout(md, dst.md);
  };
  std::vector<OpArg> args = {src};
  auto described = DescribePostOps(operations, operands, dst.md.get_dims(), &args);
  if (!described) return {};
  const bool has_channels =
      std::any_of(described->begin(), described->end(), [](const byoc_post_op& operation) {
        return operation.operand >= 0 && operation.form == BYOC_PER_CHANNEL;
      });
  std::optional<byoc_elementwise_params> p = PixelsOf(dst.md, has_channels, *isa);
  if (!p) return {};
  p->threads = values.machine().ThreadsFor(p->count, "wake_elementwise");
  p->operations = static_cast<int64_t>(described->size());
  for (byoc_post_op& operation : *described) {
    operation.strides = {0, p->channels, 0, 0, p->channels};
  }
  args.push_back(dst);

  KernelCall call;
  call.kernel = &kElementwise;
  call.args = std::move(args);
  call.params = AsParams(*p, *described);
  return {Candidate{op, {}, KernelImpl("elementwise", *isa), std::move(call), {}}};
}

}  // namespace tvm_byoc_dnnl
