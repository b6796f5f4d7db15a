// SPDX-License-Identifier: Apache-2.0
#include "dnnl/machine.h"

#include <omp.h>
#include <unistd.h>

#include <utility>

namespace tvm_byoc_dnnl {
namespace {

int64_t CacheBytes() {
  static const int64_t bytes = [] {
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return known > 0 ? known : 512L << 10;
  }();
  return bytes;
}

std::shared_ptr<const Rates> RatesOf(const Isa& isa) {
  static const auto amx = Rates::CompiledIn("avx512_core_amx");
  static const auto wide = Rates::CompiledIn("avx512_core"), others = Rates::CompiledIn("avx2");
  return isa.HasTiles() ? amx : isa.Vectors() == BYOC_AVX512 ? wide : others;
}

}  // namespace

const char* Isa::Name() const {
  static constexpr std::pair<dnnl::cpu_isa, const char*> kNames[] = {
      {dnnl::cpu_isa::sse41, "sse41"},
      {dnnl::cpu_isa::avx, "avx"},
      {dnnl::cpu_isa::avx2, "avx2"},
      {dnnl::cpu_isa::avx2_vnni, "avx2_vnni"},
      {dnnl::cpu_isa::avx2_vnni_2, "avx2_vnni_2"},
      {dnnl::cpu_isa::avx512_core, "avx512_core"},
      {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
      {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
      {dnnl::cpu_isa::avx512_core_fp16, "avx512_core_fp16"},
      {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"},
      {dnnl::cpu_isa::avx512_core_amx_fp16, "avx512_core_amx_fp16"},
  };
  for (const auto& [known, name] : kNames) {
    if (known == set_) return name;
  }
  return "unknown";
}

bool Isa::Has(dnnl::cpu_isa part) const {
  const auto bits = static_cast<unsigned>(part);
  return (static_cast<unsigned>(set_) & bits) == bits;
}

std::optional<byoc_isa> Isa::Vectors() const {
  if (Has(dnnl::cpu_isa::avx512_core)) return BYOC_AVX512;
  if (Has(dnnl::cpu_isa::avx2)) return BYOC_AVX2;
  return std::nullopt;
}

bool Isa::HasTiles() const { return BYOC_HAS_AMX && Has(dnnl::cpu_isa::avx512_core_amx); }

bool Isa::HasExactIntegerProducts() const {
  return Has(dnnl::cpu_isa::avx2_vnni) || Has(dnnl::cpu_isa::avx512_core_vnni);
}

DType Isa::ComputedIn(DType dtype) const {
  const bool converts = Has(dnnl::cpu_isa::avx2_vnni_2);
  const bool has_brain = converts || Has(dnnl::cpu_isa::avx512_core);
  const bool has_half = converts || Has(dnnl::cpu_isa::avx512_core_fp16);
  const bool is_widened =
      (dtype == DType::kBFloat16 && !has_brain) || (dtype == DType::kFloat16 && !has_half);
  return is_widened ? DType::kFloat32 : dtype;
}

Machine::Machine() : Machine(Isa()) {}

Machine::Machine(const Isa& isa)
    : isa(isa), threads(omp_get_max_threads()), cache_bytes(CacheBytes()), rates(RatesOf(isa)) {}

}  // namespace tvm_byoc_dnnl
