// SPDX-License-Identifier: Apache-2.0
// The names of candidates, and their costs: the family of each, of which machine.h has the costs.
#include <dnnl_debug.h>

#include "common/support/error.h"
#include "dnnl/candidate.h"
#include "dnnl/op_desc.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// Whether it is a convolution whose weights have an axis more.
bool HasGroups(const Candidate& candidate) {
  return candidate.op.kind == PrimitiveKind::convolution &&
         candidate.op.Find(DNNL_ARG_WEIGHTS)->md.get_dims().size() >
             candidate.op.Find(DNNL_ARG_DST)->md.get_dims().size();
}

/// "convolution" or "matmul", which have costs of their own for bfloat16. oneDNN adds up the
/// products of groups, depthwise ones among them, at the rate of float32.
std::string InItsDType(const char* family, const Candidate& candidate) {
  const bool is_low =
      candidate.op.Find(DNNL_ARG_SRC)->md.get_data_type() == dnnl::memory::data_type::bf16;
  return Cat(family, is_low && !HasGroups(candidate) ? "_bfloat16" : "");
}

/// On AVX2 oneDNN 3.2 has only a product that packs the weights at each call: few rows do not pay
/// for that.
std::string FamilyOfMatmul(const Candidate& candidate, const Machine& machine) {
  const Dims dims = candidate.op.Find(DNNL_ARG_DST)->md.get_dims();
  const bool packs = candidate.impl.compare(0, 4, "gemm") == 0;
  const bool are_few = static_cast<double>(dims[0]) <= machine.Limit("packing_rows");
  return packs && dims.size() == 2 && are_few ? "matmul_flat" : InItsDType("matmul", candidate);
}

bool ReadsBytes(const Candidate& candidate) { return IsByte(candidate.op.Find(DNNL_ARG_SRC)->md); }

/// Few channels of a picture and few weights for each output: 3x3, but not 7x7.
bool IsOfPicture(const Candidate& candidate, const Machine& machine) {
  const Dims weights = candidate.op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  const size_t rank = candidate.op.Find(DNNL_ARG_DST)->md.get_dims().size();
  return weights.size() == rank && IsThin(weights, rank, machine) &&
         static_cast<double>(ElementCount(weights)) <=
             machine.Limit("picture_taps") * static_cast<double>(weights[0]);
}

/// Each group has few outputs, and its weights are not padded: they fill a part of a vector.
bool IsNarrow(const Candidate& candidate, const Machine& machine) {
  const Dims weights = candidate.pd.Arg(DNNL_ARG_WEIGHTS).get_padded_dims();
  return HasGroups(candidate) && weights[1] * weights[2] > 1 &&
         static_cast<double>(weights[1]) < machine.Limit("narrow_outputs");
}

std::string Shape(const MemoryDesc& md) {
  const std::string text = ToString(md);  // dtype : order : shape
  return text.substr(0, text.find(':')) + " " + text.substr(text.rfind(':') + 1);
}

}  // namespace

bool IsReference(dnnl::primitive::kind kind, const std::string& impl) {
  // These take the elements one by one; concats and reorders of such names copy rows.
  const bool by_elements =
      kind == dnnl::primitive::kind::resampling || kind == dnnl::primitive::kind::pooling;
  return impl.compare(0, 3, "ref") == 0 || (by_elements && impl.compare(0, 6, "simple") == 0);
}

bool Unfolds(const std::string& impl) { return impl.find("gemm:") != std::string::npos; }

std::string FamilyOf(const Candidate& candidate, const Machine& machine) {
  if (candidate.call) {
    const std::string kernel = candidate.call->kernel->name;
    const bool of_pixels = candidate.op.kind == PrimitiveKind::convolution;
    if (kernel == "integer" && machine.isa.HasExactIntegerProducts()) return "integer_vnni";
    return kernel == "product" && of_pixels ? "product_pixels" : kernel;
  }
  if (candidate.op.kind == PrimitiveKind::undef) return candidate.impl;  // of several primitives
  if (candidate.work.products > 0 && ReadsBytes(candidate)) return "bytes";
  if (IsNormalization(candidate.op.kind) && ReadsBytes(candidate)) return "normalize_bytes";
  if (candidate.work.vectors > 0) return "rows";
  if (candidate.op.kind == PrimitiveKind::matmul) return FamilyOfMatmul(candidate, machine);
  if (candidate.op.kind == PrimitiveKind::lrn)
    return candidate.pd.Arg(DNNL_ARG_SRC).get_inner_nblks() > 0 ? "lrn_blocked" : "";
  if (candidate.op.kind == PrimitiveKind::reorder) return "conversion";  // in the same layout
  if (candidate.op.kind != PrimitiveKind::convolution) return "";
  const bool is_halved =
      machine.isa.Vectors() == BYOC_AVX512 && candidate.impl.find(":avx2") != std::string::npos;
  return Unfolds(candidate.impl)           ? "convolution_gemm"
         : is_halved                       ? "convolution_halved"
         : IsNarrow(candidate, machine)    ? "convolution_narrow"
         : IsOfPicture(candidate, machine) ? "convolution_picture"
                                           : InItsDType("convolution", candidate);
}

double ReorderCost(const Candidate& candidate, const Machine& machine) {
  return machine.rates->ReorderSeconds(candidate.work, machine.threads);
}

double DefaultCost(const Candidate& candidate, const Machine& machine) {
  const double times =
      IsReference(candidate.op.kind, candidate.impl) ? machine.Limit("reference") : 1;
  return machine.Seconds(FamilyOf(candidate, machine), candidate.work, times);
}

std::string WorkloadKey(const OpDesc& op) {
  std::string key = dnnl_prim_kind2str(static_cast<dnnl_primitive_kind_t>(op.kind));
  if (op.alg != dnnl::algorithm::undef) key += " " + PrintAlgorithm(op.alg);
  for (const OpArg& arg : op.args) key += " " + Shape(arg.md);
  auto add = [&](const char* name, const Dims& dims) {
    if (!dims.empty()) key += Cat(" ", name, Join(dims));
  };
  add("k", op.kernel);
  add("s", op.strides);
  add("d", op.dilates);
  add("p", op.pad_begin);
  add("q", op.pad_end);
  if (op.axis != 0) key += Cat(" axis", op.axis);
  for (const ScalingDesc& s : op.scalings) key += Cat(" scaled", s.arg, ":", s.scale_mask);
  for (const PostOpDesc& post_op : op.post_ops) {
    key += post_op.kind == PostOpDesc::Kind::kSum ? " sum" : " " + PrintAlgorithm(post_op.alg);
    if (post_op.kind == PostOpDesc::Kind::kBinary) key += " " + Shape(post_op.md);
  }
  return key;
}

std::string CandidateName(const Candidate& candidate) {
  std::string name = candidate.impl;
  for (const OpArg& arg : candidate.call ? candidate.call->args : candidate.op.args) {
    name += " " + ToString(candidate.call ? arg.md : candidate.pd.Arg(arg.arg));
  }
  return name;
}

}  // namespace tvm_byoc_dnnl
