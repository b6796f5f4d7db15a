// SPDX-License-Identifier: Apache-2.0
// Products with weights of 8 or 4 bits that are constant: a kernel of ours.
#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_compressed_matmul.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kCompressedMatmul = {"compressed_matmul", "compressed_matmul",
                                      byoc_compressed_matmul};
constexpr Kernel kCompressedPack = {"compressed_pack", "compressed_plan", byoc_compressed_pack};

byoc_compressed_params ParamsOf(const NodeView& n) {
  byoc_compressed_params p{};
  p.isa = n.lowering.isa().Vectors().value_or(static_cast<byoc_isa>(0));
  p.rows = n.Shape(0)[0];
  p.depth = n.Shape(0)[1];
  p.columns = n.OutShape()[1];
  p.group = n.a.group_size;
  p.bits = n.Shape(1)[1] == p.depth ? 8 : 4;
  p.has_zero_points = n.OwnInputs() == 4;
  p.scale_bits = n.a.scale_bits;
  p.rounds = n.a.alg == "int8";
  p.has_vnni = p.rounds && n.lowering.isa().HasExactIntegerProducts();
  p.threads = n.lowering.machine().threads;
  return p;
}

int Packed(const NodeView& n, const byoc_compressed_params& p) {
  byoc_compressed_params of_weights = p;  // the same for any number of rows
  of_weights.rows = of_weights.post_ops = of_weights.threads = 0;
  of_weights.rounds = of_weights.has_vnni = 0;
  std::vector<OpArg> args = {n.AsDense(DNNL_ARG_WEIGHTS, 1), n.AsDense(DNNL_ARG_SCALE, 2)};
  if (p.has_zero_points) args.push_back(n.AsDense(DNNL_ARG_SHIFT, 3));
  for (const OpArg& arg : args) {
    if (!n.lowering.IsConstant(arg.value)) {
      Fail(ErrorKind::kUnsupported, "its weights, scales and zero points must be constants");
    }
  }
  return n.lowering.Pack(kCompressedPack, AsParams(of_weights), args, n.In(1),
                         byoc_compressed_packed_bytes(&p));
}

}  // namespace

static bool FuseCompressedMatmul(const NodeView& n, const std::vector<PostOpDesc>& post_ops) {
  byoc_compressed_params p = ParamsOf(n);
  if (p.isa == 0 && !post_ops.empty()) return false;
  std::vector<MemoryDesc> layouts(post_ops.size());
  for (size_t i = 0; i < post_ops.size(); ++i) {
    const int operand = post_ops[i].value;
    if (operand >= 0) layouts[i] = RawLayout(n.lowering.shape(operand), n.lowering.dtype(operand));
  }
  const MemoryDesc dst = Dense(n.OutShape(), DType::kFloat32);
  std::vector<OpArg> operands(2);
  const auto described =
      DescribePostOps(post_ops, OperandsWithStrides(std::move(layouts), byoc_lanes(p.isa)),
                      n.OutShape(), &operands);
  if (!described) return false;
  const int64_t bytes = byoc_compressed_packed_bytes(&p);
  operands[0] = n.AsDense(DNNL_ARG_SRC, 0);
  operands[1] = {DNNL_ARG_WEIGHTS, Packed(n, p), Dense({bytes}, DType::kUInt8)};
  operands.push_back({DNNL_ARG_DST, n.output, dst});
  p.post_ops = static_cast<int64_t>(described->size());

  const char* name = p.rounds ? "compressed_integer" : "compressed";
  Step step = StepOf(kCompressedMatmul, KernelImpl(name, p.isa), p, *described);
  step.op.kind = dnnl::primitive::kind::matmul;  // for reports
  step.op.post_ops = post_ops;
  n.lowering.EmitKernel(std::move(step), operands, byoc_compressed_scratch_bytes(&p));
  return true;
}

static void LowerCompressedMatmul(const NodeView& n) { FuseCompressedMatmul(n, {}); }

const KindRow kCompressedMatmulRow = {nullptr, LowerCompressedMatmul, FuseCompressedMatmul};

}  // namespace tvm_byoc_dnnl
