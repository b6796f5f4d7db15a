// SPDX-License-Identifier: Apache-2.0
#include "dnnl/machine.h"

#include <cpuid.h>
#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/support/bytes.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

int64_t CacheBytes() {
  static const int64_t bytes = [] {
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return known > 0 ? known : 512L << 10;
  }();
  return bytes;
}

/// By vendor, family and model, as "AuthenticAMD-25-17".
std::string NameOfCpu() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  char vendor[13] = {};
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return "unknown";
  std::memcpy(vendor, &b, 4);
  std::memcpy(vendor + 4, &d, 4);
  std::memcpy(vendor + 8, &c, 4);
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return vendor;
  const unsigned family = (a >> 8 & 15) + ((a >> 8 & 15) == 15 ? a >> 20 & 255 : 0);
  return Cat(vendor, "-", family, "-", (a >> 4 & 15) + (a >> 16 & 15) * 16);
}

std::string InUsersCache(const std::string& name) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  const std::string root = cache && *cache ? cache : home ? Cat(home, "/.cache") : "";
  return root.empty() ? "" : Cat(root, "/tvm_byoc_dnnl/rates/", name, ".json");
}

const char* NameOfRates(const Isa& isa) {
  return isa.HasTiles()                 ? "avx512_core_amx"
         : isa.HasBFloat16Products()    ? "avx512_core_bf16"
         : isa.Vectors() == BYOC_AVX512 ? "avx512_core"
                                        : "avx2";
}

std::string HashOf(const std::string& text) {
  std::ostringstream out;
  out << std::hex << Xxh64(text);
  return out.str();
}

/// Takes what a file says if it is about this machine. Throws Error(kInput).
bool Read(const std::string& path, Described* described) {
  std::ifstream file(path);
  if (!file) return false;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    const json::Value document = json::Parse(text);
    const json::Object& object = AsObject(document, "rates");
    if (AsString(Field(object, "machine", "rates"), "machine") != described->name) return false;
    described->rates = std::make_shared<const Rates>(object);
  } catch (const Error& error) {
    Fail(ErrorKind::kInput, path, ": ", error.what(), "; expected a file that `tvm-byoc tune ",
         "--machine` has written. Measure again, or remove it");
  }
  described->source = path;
  described->hash = HashOf(text);
  return true;
}

Described Find(const Isa& isa) {
  Described described;
  described.name = Cat(NameOfCpu(), "-", isa.Name());
  described.file = InUsersCache(described.name);
  const char* named = std::getenv("TVM_BYOC_RATES");
  if (named != nullptr && *named != '\0') {
    if (!std::ifstream(named)) {
      Fail(ErrorKind::kInput, "TVM_BYOC_RATES names ", named, ", which cannot be read; expected a ",
           "file that `tvm-byoc tune --machine` has written. Name one, or unset the variable");
    }
    if (Read(named, &described)) return described;
  }
  if (!described.file.empty() && Read(described.file, &described)) return described;
  for (const std::string& name : {described.name, std::string(NameOfRates(isa))}) {
    described.rates = Rates::CompiledIn(name);
    described.source = Cat("compiled in for ", name);
    described.hash = HashOf(Rates::AllCompiledIn());
    if (described.rates) break;
  }
  return described;
}

}  // namespace

const Described& DescribedHere() {
  static const Described described = Find(Isa());
  return described;
}

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

bool Isa::HasBFloat16Products() const { return Has(dnnl::cpu_isa::avx512_core_bf16); }

DType Isa::ComputedIn(DType dtype) const {
  const bool converts = Has(dnnl::cpu_isa::avx2_vnni_2);
  const bool has_brain = converts || HasBFloat16Products();
  const bool has_half = converts || Has(dnnl::cpu_isa::avx512_core_fp16);
  const bool is_widened =
      (dtype == DType::kBFloat16 && !has_brain) || (dtype == DType::kFloat16 && !has_half);
  return is_widened ? DType::kFloat32 : dtype;
}

Machine::Machine() : Machine(Isa()) { rates = DescribedHere().rates; }

Machine::Machine(const Isa& isa)
    : isa(isa),
      threads(omp_get_max_threads()),
      cache_bytes(CacheBytes()),
      rates(Rates::CompiledIn(NameOfRates(isa))) {}

}  // namespace tvm_byoc_dnnl
