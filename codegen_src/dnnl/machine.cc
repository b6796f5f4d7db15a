// SPDX-License-Identifier: Apache-2.0
#include "dnnl/machine.h"

#include <cpuid.h>
#include <dnnl_debug.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/support/bytes.h"
#include "common/support/json.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr char kCompiledIn[] =
#include "machines.inc"
    ;
constexpr const char* kDTypes[] = {"float32", "bfloat16", "int8"};
const json::Object& Machines() {
  static const json::Value document = json::Parse(kCompiledIn);
  return *document.As<json::Object>();
}

/// What each number means that a machine's description or its base has.
const json::Object& AllLimits() { return *json::Find(Machines(), "limits")->As<json::Object>(); }

/// ["float32", products, vectors, ...] without zeros at the end, or why there is none.
Family ReadFamily(const json::Value& value, const std::string& where) {
  Family family;
  if (const auto* why = value.As<std::string>()) {
    family.why_none = *why;
    return family;
  }
  const json::Array& row = AsArray(value, where);
  if (row.empty() || row.size() > kCosts + 1)
    Fail(ErrorKind::kGraph, where, ": got ", row.size(), " values, expected a dtype and 6 costs");
  family.dtype = AsString(row[0], where);
  for (size_t i = 1; i < row.size(); ++i) {
    const double cost = family.costs[i - 1] = AsNumber(row[i], where);
    if (!(cost >= 0)) Fail(ErrorKind::kGraph, where, ": got ", cost, ", expected 0 or more");
  }
  return family;
}

/// The seconds of one of `name`, of which a machine does so many in a second.
double Inverse(const json::Object& object, const std::string& name, double unit,
               const std::string& where) {
  const double number = AsNumber(Field(object, name.c_str(), where), where + ": " + name);
  if (!(number > 0))
    Fail(ErrorKind::kGraph, where, ": ", name, " is ", number, ", expected above 0");
  return 1 / (number * unit);
}

Speed ReadSpeed(const json::Object& object, double lanes, const std::string& where) {
  AllowOnly(object,
            "float32_gflops bfloat16_gflops int8_gflops weights_gbytes memory_gbytes moved_gbytes "
            "wake_us families",
            where);
  constexpr double kGiga = 1e9;
  Speed speed;
  for (const char* dtype : kDTypes)
    speed.products[dtype] = Inverse(object, Cat(dtype, "_gflops"), kGiga / 2, where);
  speed.seconds = {0,
                   lanes * speed.products["float32"],
                   Inverse(object, "weights_gbytes", kGiga, where),
                   Inverse(object, "memory_gbytes", kGiga, where),
                   Inverse(object, "moved_gbytes", kGiga, where),
                   1e-6 * AsNumber(Field(object, "wake_us", where), where + ": wake_us")};
  for (const auto& [name, value] : AsObject(Field(object, "families", where), where)) {
    const Family family = ReadFamily(value, Cat(where, ": ", name));
    if (family.why_none.empty() && speed.products.count(family.dtype) == 0)
      Fail(ErrorKind::kGraph, where, ": ", name, ": got the dtype ", family.dtype, ", expected ",
           Join(kDTypes));
    speed.families.emplace(name, family);
  }
  return speed;
}

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

std::string Isa::Name() const {
  constexpr std::string_view kPrefix = "cpu_isa_";
  const std::string_view name = dnnl_cpu_isa2str(static_cast<dnnl_cpu_isa_t>(set_));
  return std::string(name.substr(0, kPrefix.size()) == kPrefix ? name.substr(kPrefix.size())
                                                               : "unknown");
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

Rates::Rates(const json::Object& document) {
  AllowOnly(document, "about machine base lanes cache_mb limits threads", "rates");
  const auto number = [&](const char* name) {
    return AsNumber(Field(document, name, "rates"), name);
  };
  if (const json::Value* base = json::Find(document, "base")) {
    base_ = CompiledIn(AsString(*base, "rates: base"));
    if (!base_) Fail(ErrorKind::kGraph, "rates: unknown base ", AsString(*base, "rates: base"));
  }
  if (const json::Value* limits = json::Find(document, "limits")) {
    const json::Object& object = AsObject(*limits, "rates: limits");
    for (const auto& [name, value] : object) {
      if (json::Find(AllLimits(), name) == nullptr)
        Fail(ErrorKind::kGraph, "rates: limits: unknown field \"", name, "\"");
      limits_[name] = AsNumber(value, name);
    }
  }
  for (const auto& limit : AllLimits()) Limit(limit.first);  // each is there
  constexpr int kMega = 1 << 20;
  many_weights_ = kMega * number("cache_mb");
  for (const auto& [threads, value] :
       AsObject(Field(document, "threads", "rates"), "rates: threads")) {
    const std::string where = Cat("rates: threads: ", threads);
    speeds_[std::atoi(threads.c_str())] = ReadSpeed(AsObject(value, where), number("lanes"), where);
  }
  if (speeds_.empty() || speeds_.begin()->first < 1)
    Fail(ErrorKind::kGraph, "rates: threads: expected numbers of threads, 1 or more");
}

const char* Rates::AllCompiledIn() { return kCompiledIn; }

std::shared_ptr<const Rates> Rates::CompiledIn(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Rates>> known;
  const json::Value* found = json::Find(Machines(), name);
  if (found == nullptr) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (auto at = known.find(name); at != known.end()) return at->second;
  }
  auto made = std::make_shared<const Rates>(*found->As<json::Object>());  // may ask for its base
  const std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(name, std::move(made)).first->second;
}

/// With the most threads that are no more than these, else with the fewest.
const Speed& Rates::At(int threads) const {
  auto next = speeds_.upper_bound(threads);
  return next == speeds_.begin() ? next->second : std::prev(next)->second;
}

const Family* Rates::Find(const std::string& family, int threads) const {
  const auto& families = At(threads).families;
  const auto found = families.find(family);
  if (found != families.end()) return &found->second;
  return base_ ? base_->Find(family, threads) : nullptr;
}

double Rates::Limit(const std::string& name) const {
  const auto found = limits_.find(name);
  if (found != limits_.end()) return found->second;
  if (!base_) Fail(ErrorKind::kGraph, "rates: limits: there is no ", name);
  return base_->Limit(name);
}

std::array<double, kCosts> Rates::Amounts(const Work& work) const {
  const double far_weights = work.weights > many_weights_ ? work.weights : 0;
  return {work.products, work.vectors, work.weights, far_weights, work.bytes, 1};
}

std::array<double, kCosts> Rates::SecondsOfEach(const Family& family, int threads) const {
  const Speed& speed = At(threads);
  std::array<double, kCosts> seconds = speed.seconds;
  seconds.front() = speed.products.at(family.dtype);
  for (size_t i = 0; i < kCosts; ++i) seconds[i] *= family.costs[i];
  return seconds;
}

double Rates::Seconds(const std::string& name, const Work& work, int threads, double times) const {
  const Family* found = Find(name, threads);
  const Family& family = found && found->why_none.empty() ? *found : *Find("", threads);
  const auto amounts = Amounts(work), seconds = SecondsOfEach(family, threads);
  const double start = seconds.back();
  const double working =
      std::inner_product(amounts.begin(), amounts.end() - 1, seconds.begin(), 0.0);
  return times * working + start + ReorderSeconds(work, threads);
}

double Rates::ReorderSeconds(const Work& work, int threads) const {
  constexpr size_t kBytes = 4;
  const double moved =
      work.reordered + Find("batch_norm", threads)->costs[kBytes] * work.normalized;
  return moved * At(threads).seconds[kBytes];
}

std::vector<std::string> Rates::Families() const {
  std::vector<std::string> families = base_ ? base_->Families() : std::vector<std::string>();
  for (const auto& [threads, speed] : speeds_) {
    for (const auto& [name, family] : speed.families) {
      if (std::find(families.begin(), families.end(), name) == families.end())
        families.push_back(name);
    }
  }
  return families;
}

}  // namespace tvm_byoc_dnnl
