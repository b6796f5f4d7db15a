// SPDX-License-Identifier: Apache-2.0
// The names of candidates, and the model of their costs.
#include <dnnl_debug.h>

#include "common/support/error.h"
#include "dnnl/candidate.h"
#include "dnnl/primitives.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// Seconds for each unit of Work.
struct Rates {
  const char* family;
  byoc_isa isa;
  double products, vectors, weights, far_weights, bytes, reordered;
  double start = 0;  // seconds in any case
};

/// Two threads of a Cascade Lake at 2.5 GHz. The first row of a family and an instruction set.
/// In networks, whose weights are not in cache, were measured: "split" and "split_winograd" on a
/// Granite Rapids, as 1.2 times their time there, since it is faster than the Cascade Lake;
/// "winograd", in proportion to "convolution", and the weights of this for AVX-512 there, too;
/// "convolution", "product" and the weights of "winograd" for AVX2 on a Zen 3, "product_pixels" and
/// "direct" in proportion to it. "product_pixels" for AVX-512 and what "batch_norm_product" adds to
/// it are fitted to a Granite Rapids, in proportion to "convolution". "convolution_gemm", and
/// "groups" in proportion to "convolution", are fitted to groups of 2 to 16 channels on a Zen 4,
/// "lrn_blocked" to LRN in blocks of 8 channels there. "convolution_picture", "groups" and the
/// start of "matmul" for AVX2 are fitted to a Granite Rapids. `far_weights` is added where the
/// weights are too many to stay in the last cache.
constexpr Rates kRates[] = {
    {"convolution", BYOC_AVX512, 6.9e-12, 0, 9e-12, 0, 0, 1e-10},
    {"convolution", BYOC_AVX2, 13.5e-12, 0, 9.5e-12, 0, 0, 1e-10},
    {"convolution_gemm", BYOC_AVX512, 70e-12, 0, 0, 0, 4e-11, 1e-10},
    {"convolution_gemm", BYOC_AVX2, 95e-12, 0, 0, 0, 4e-11, 1e-10},
    {"convolution_narrow", BYOC_AVX512, 14e-12, 0, 9e-12, 0, 0, 1e-10},
    {"convolution_narrow", BYOC_AVX2, 27e-12, 0, 9.5e-12, 0, 0, 1e-10},
    {"convolution_picture", BYOC_AVX2, 17e-12, 0, 9.5e-12, 0, 0, 1e-10},
    {"groups", BYOC_AVX512, 6e-12, 0.17e-9, 0, 0, 0, 1e-10},
    {"groups", BYOC_AVX2, 8e-12, 0.24e-9, 0, 0, 0, 1e-10},
    {"direct", BYOC_AVX2, 14e-12, 0.3e-9, 0, 0, 0, 1e-10},
    {"winograd", BYOC_AVX512, 8.0e-12, 3.0e-9, 36e-12, 27e-12, 0, 1e-10},
    {"winograd", BYOC_AVX2, 8.0e-12, 3.2e-9, 26e-12, 24e-12, 0, 1e-10},
    {"product", BYOC_AVX512, 8.0e-12, 0, 17e-12, 27e-12, 0, 1e-10},
    {"product", BYOC_AVX2, 12e-12, 0, 18e-12, 29e-12, 0, 1e-10},
    {"product_pixels", BYOC_AVX512, 6.6e-12, 1.8e-9, 8e-12, 0, 0, 1e-10},
    {"product_pixels", BYOC_AVX2, 13.55e-12, 0, 3e-12, 0, 0, 1e-10},
    {"batch_norm_product", BYOC_AVX512, 6.6e-12, 0.8e-9, 8e-12, 0, 0, 1e-10},
    {"batch_norm_product", BYOC_AVX2, 13.55e-12, 0.4e-9, 3e-12, 0, 0, 1e-10},
    {"matmul", BYOC_AVX512, 7.6e-12, 0, 18e-12, 37e-12, 0, 1e-10},
    {"matmul_flat", BYOC_AVX2, 25e-12, 0, 21e-12, 40e-12, 0, 1e-10},
    {"matmul", BYOC_AVX2, 12.6e-12, 0, 18e-12, 39e-12, 0, 1e-10, 2e-6},
    {"split", BYOC_AVX512, 0.42e-12, 4.5e-9, 24e-12, 27e-12, 0, 1e-10, 5e-6},
    {"split_winograd", BYOC_AVX512, 0.85e-12, 2.9e-9, 34e-12, 0, 0, 1e-10, 2e-6},
    {"attention", BYOC_AVX512, 19.5e-12, 1.2e-9, 0, 0, 0, 1e-10, 40e-6},
    {"attention", BYOC_AVX2, 35e-12, 0.8e-9, 0, 0, 0, 1e-10, 40e-6},
    {"attention_few", BYOC_AVX512, 140e-12, 0, 0, 0, 0, 1e-10, 25e-6},
    {"attention_few", BYOC_AVX2, 180e-12, 0, 0, 0, 0, 1e-10, 25e-6},
    {"attention_steps", BYOC_AVX512, 22e-12, 0.15e-9, 0, 0, 0, 1e-10, 55e-6},
    {"attention_steps", BYOC_AVX2, 38e-12, 0.11e-9, 0, 0, 0, 1e-10, 55e-6},
    {"bytes", BYOC_AVX512, 2.0e-12, 0, 0, 0, 0, 1e-10},
    {"bytes", BYOC_AVX2, 6.0e-12, 0, 0, 0, 0, 1e-10},
    {"integer", BYOC_AVX512, 7.0e-12, 0.6e-9, 0, 0, 0, 1e-10},
    {"integer", BYOC_AVX2, 10.2e-12, 0.6e-9, 0, 0, 0, 1e-10},
    {"lrn_blocked", BYOC_AVX2, 0, 0, 0, 0, 2e-10, 1e-10},
    {"normalize", BYOC_AVX512, 0, 5e-9, 0, 0, 0, 1e-10},
    {"normalize", BYOC_AVX2, 0, 5e-9, 0, 0, 0, 1e-10},
    {"normalize_bytes", BYOC_AVX512, 0, 0, 0, 0, 1.7e-9, 1e-10},
    {"normalize_bytes", BYOC_AVX2, 0, 0, 0, 0, 1.7e-9, 1e-10},
    {"", BYOC_AVX512, 10e-12, 0, 0, 0, 1e-10, 1e-10},
    {"", BYOC_AVX2, 20e-12, 0, 0, 0, 1e-10, 1e-10},
};
constexpr double kManyWeights = 16 << 20;  // bytes
constexpr double kReference = 100;         // times as slow as the others

/// On AVX2 oneDNN 3.2 has only a product that packs the weights at each call: few rows do not pay
/// for that.
std::string FamilyOfMatmul(const Candidate& candidate) {
  constexpr int64_t kFew = 16;
  const Dims dims = candidate.op.Find(DNNL_ARG_DST)->md.get_dims();
  const bool packs = candidate.impl.compare(0, 4, "gemm") == 0;
  return packs && dims.size() == 2 && dims[0] <= kFew ? "matmul_flat" : "matmul";
}

bool ReadsBytes(const Candidate& candidate) {
  const auto dtype = candidate.op.Find(DNNL_ARG_SRC)->md.get_data_type();
  return dtype == dnnl::memory::data_type::u8 || dtype == dnnl::memory::data_type::s8;
}

bool IsNormalization(PrimitiveKind kind) {
  return kind == PrimitiveKind::softmax || kind == PrimitiveKind::layer_normalization;
}

/// Few channels of a picture and few weights for each output: 3x3, but not 7x7.
bool IsOfPicture(const Candidate& candidate, const Isa& isa) {
  constexpr int64_t kFew = 64;
  const Dims weights = candidate.op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  const size_t rank = candidate.op.Find(DNNL_ARG_DST)->md.get_dims().size();
  return weights.size() == rank && IsThin(weights, rank, isa) &&
         ElementCount(weights) <= kFew * weights[0];
}

/// Each group has few outputs, and its weights are not padded: they fill a part of a vector.
bool IsNarrow(const Candidate& candidate) {
  constexpr int64_t kFew = 8;
  const Dims weights = candidate.pd.Arg(DNNL_ARG_WEIGHTS).get_padded_dims();
  const size_t rank = candidate.op.Find(DNNL_ARG_DST)->md.get_dims().size();
  return weights.size() > rank && weights[1] < kFew && weights[1] * weights[2] > 1;
}

std::string FamilyOf(const Candidate& candidate, const Isa& isa) {
  if (candidate.call) {
    const std::string kernel = candidate.call->kernel->name;
    const bool of_pixels = candidate.op.kind == PrimitiveKind::convolution;
    return kernel == "product" && of_pixels ? "product_pixels" : kernel;
  }
  if (candidate.op.kind == PrimitiveKind::undef) return candidate.impl;  // of several primitives
  if (candidate.work.products > 0 && ReadsBytes(candidate)) return "bytes";
  if (IsNormalization(candidate.op.kind) && ReadsBytes(candidate)) return "normalize_bytes";
  if (candidate.op.kind == PrimitiveKind::matmul) return FamilyOfMatmul(candidate);
  if (candidate.op.kind == PrimitiveKind::lrn)
    return candidate.pd.Arg(DNNL_ARG_SRC).get_inner_nblks() > 0 ? "lrn_blocked" : "";
  if (candidate.op.kind != PrimitiveKind::convolution) return "";
  return Unfolds(candidate.impl)       ? "convolution_gemm"
         : IsNarrow(candidate)         ? "convolution_narrow"
         : IsOfPicture(candidate, isa) ? "convolution_picture"
                                       : "convolution";
}

const Rates& RatesOf(const Candidate& candidate, const Isa& isa) {
  const std::string family = FamilyOf(candidate, isa);
  const byoc_isa vectors = isa.Vectors().value_or(BYOC_AVX2);
  for (const Rates& rates : kRates) {
    if (rates.isa == vectors && (family == rates.family || *rates.family == '\0')) return rates;
  }
  return kRates[0];
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

double ReorderCost(const Candidate& candidate, const Isa& isa) {
  return candidate.work.reordered * RatesOf(candidate, isa).reordered;
}

double DefaultCost(const Candidate& candidate, const Isa& isa) {
  const Work& work = candidate.work;
  const Rates& rates = RatesOf(candidate, isa);
  const double weights =
      work.weights * (rates.weights + (work.weights > kManyWeights ? rates.far_weights : 0));
  const double seconds = work.products * rates.products + work.vectors * rates.vectors + weights +
                         work.bytes * rates.bytes;
  return (IsReference(candidate.op.kind, candidate.impl) ? kReference : 1) * seconds +
         work.reordered * rates.reordered + rates.start;
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
