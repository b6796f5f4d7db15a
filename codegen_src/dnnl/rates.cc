// SPDX-License-Identifier: Apache-2.0
#include "dnnl/rates.h"

#include <algorithm>

namespace tvm_byoc_dnnl {
namespace {

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
    {"conversion", BYOC_AVX512, 0, 0, 0, 0, 2.2e-11, 0},
    {"conversion", BYOC_AVX2, 0, 0, 0, 0, 2.2e-11, 0},
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
    {"log", BYOC_AVX512, 10e-12, 0, 0, 0, 1e-10, 1e-10},
    {"log", BYOC_AVX2, 20e-12, 0, 0, 0, 1e-10, 1e-10},
    {"lrn_blocked", BYOC_AVX2, 0, 0, 0, 0, 2e-10, 1e-10},
    {"normalize", BYOC_AVX512, 0, 5e-9, 0, 0, 0, 1e-10},
    {"normalize", BYOC_AVX2, 0, 5e-9, 0, 0, 0, 1e-10},
    {"normalize_bytes", BYOC_AVX512, 0, 0, 0, 0, 1.7e-9, 1e-10},
    {"normalize_bytes", BYOC_AVX2, 0, 0, 0, 0, 1.7e-9, 1e-10},
    {"", BYOC_AVX512, 10e-12, 0, 0, 0, 1e-10, 1e-10},
    {"", BYOC_AVX2, 20e-12, 0, 0, 0, 1e-10, 1e-10},
};
constexpr double kManyWeights = 16 << 20;  // bytes

/// Where a family has no rates, and why.
struct Absence {
  const char* family;
  byoc_isa isa;
  const char* why;
};
constexpr Absence kAbsences[] = {
    {"convolution_picture", BYOC_AVX512, "oneDNN's convolutions of pictures cost what others do"},
    {"direct", BYOC_AVX512, "oneDNN has good primitives where groups fill vectors"},
    {"matmul_flat", BYOC_AVX512, "oneDNN packs the weights of a product once"},
    {"lrn_blocked", BYOC_AVX512, "blocks of 16 channels were not seen to be slower"},
    {"split", BYOC_AVX2, "its products need AMX"},
    {"split_winograd", BYOC_AVX2, "its products need AMX"},
};

byoc_isa VectorsOf(const Isa& isa) { return isa.Vectors().value_or(BYOC_AVX2); }

const Rates& RatesOf(const std::string& family, const Isa& isa) {
  for (const Rates& rates : kRates) {
    if (rates.isa == VectorsOf(isa) && (family == rates.family || *rates.family == '\0'))
      return rates;
  }
  return kRates[0];
}

}  // namespace

double Seconds(const std::string& family, const Isa& isa, const Work& work, double times) {
  const Rates& rates = RatesOf(family, isa);
  const double weights =
      work.weights * (rates.weights + (work.weights > kManyWeights ? rates.far_weights : 0));
  const double seconds = work.products * rates.products + work.vectors * rates.vectors + weights +
                         work.bytes * rates.bytes;
  return times * seconds + work.reordered * rates.reordered + rates.start;
}

double ReorderSeconds(const std::string& family, const Isa& isa, const Work& work) {
  return work.reordered * RatesOf(family, isa).reordered;
}

std::vector<std::string> Families() {
  std::vector<std::string> families;
  for (const Rates& rates : kRates) {
    if (std::find(families.begin(), families.end(), rates.family) == families.end())
      families.emplace_back(rates.family);
  }
  return families;
}

std::string WhyNoRates(const std::string& family, const Isa& isa) {
  if (family == RatesOf(family, isa).family) return "";
  for (const Absence& absence : kAbsences) {
    if (absence.isa == VectorsOf(isa) && family == absence.family) return absence.why;
  }
  return "unknown";
}

}  // namespace tvm_byoc_dnnl
