// SPDX-License-Identifier: Apache-2.0
// The machine that a plan is made for: this one, or another, to ask what would be chosen there. And
// what work costs on a machine: the numbers stand in machines.json, or in a file of the same form
// that was measured on this machine.
#pragma once

#include <array>
#include <cstdint>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/graph.h"
#include "common/support/json.h"
#include "dnnl/op_desc.h"
#include "kernels/byoc_isa.h"

namespace tvm_byoc_dnnl {

/// An instruction set, named as oneDNN does. Every question about it is answered here.
class Isa {
 public:
  /// What CPU, operating system and user (ONEDNN_MAX_CPU_ISA) allow in this process.
  Isa() : Isa(dnnl::get_effective_cpu_isa()) {}
  explicit Isa(dnnl::cpu_isa set) : set_(set) {}

  /// "avx512_core_vnni"
  std::string Name() const;

  /// The better of AVX-512 and AVX2, for which there are kernels; nothing if there is neither.
  std::optional<byoc_isa> Vectors() const;

  /// Whether AMX multiplies bfloat16, and the compiler knew AMX.
  bool HasTiles() const;

  /// Whether it sums products of 8-bit integers in 32 bits at once. Without such an instruction
  /// oneDNN uses vpmaddubsw, which saturates at 16 bits, or halves the weights, which rounds them.
  bool HasExactIntegerProducts() const;

  /// Whether it sums products of bfloat16 in float32 at once. oneDNN emulates them on any other
  /// AVX-512, which takes longer than float32.
  bool HasBFloat16Products() const;

  /// The dtype of a value whose tensor has this one: float32 for bfloat16 and float16 where oneDNN
  /// does not compute in them, or only emulates it.
  DType ComputedIn(DType dtype) const;

 private:
  /// oneDNN's numbers are sets of bits.
  bool Has(dnnl::cpu_isa part) const;

  dnnl::cpu_isa set_;
};

/// The amounts of work that cost time. Lowering counts the bytes.
struct Work {
  double products = 0;    // multiplications and additions, those of padding included
  double vectors = 0;     // that a kernel transforms before and after its products
  double weights = 0;     // bytes of constant operands, as packed
  double bytes = 0;       // of all other operands and of the result
  double reordered = 0;   // bytes of the operands that need another layout first
  double normalized = 0;  // bytes of those that a batch normalisation makes first
};

constexpr size_t kCosts = 6;

/// A kind of candidates that make the same use of a machine. Its costs are times of what the
/// machine needs at least for a product of two numbers, of two vectors of float32, for a byte of
/// weights that a cache has, and that none has, for a byte that is moved, and to wake the threads.
struct Family {
  std::string dtype;  // whose products it computes
  std::array<double, kCosts> costs = {};
  std::string why_none;  // if there is no such candidate on the machine
};

/// A machine with a number of threads: seconds of each cost, of a product by its dtype.
struct Speed {
  std::map<std::string, double> products;
  std::array<double, kCosts> seconds = {};
  std::map<std::string, Family> families;
};

/// How fast a machine is, with each number of threads that was measured. What it does not say of a
/// family, its base does.
class Rates {
 public:
  explicit Rates(const json::Object& document);  // throws Error(kGraph)

  /// Those that were compiled in under a name; nothing if there are none.
  static std::shared_ptr<const Rates> CompiledIn(const std::string& name);
  static const char* AllCompiledIn();

  /// Seconds of a family of candidates, `times` as slow as it is but for the changes of layout. A
  /// family of which nothing is said costs what the nameless one does, which is that of primitives
  /// that only move or change numbers.
  double Seconds(const std::string& family, const Work& work, int threads, double times = 1) const;

  /// The part of it that is the changes of layout.
  double ReorderSeconds(const Work& work, int threads) const;

  /// Bytes, more of which stay in no cache from one call to the next.
  double ManyWeights() const { return many_weights_; }

  /// A number of this description or its base that bounds what is tried, or says what it is worth.
  double Limit(const std::string& name) const;

  /// In the order of Family's costs: the amounts of work, and the seconds of a family for each.
  std::array<double, kCosts> Amounts(const Work& work) const;
  std::array<double, kCosts> SecondsOfEach(const Family& family, int threads) const;

  /// Of this description or its base; nullptr if nothing is said of it.
  const Family* Find(const std::string& family, int threads) const;

  /// All of which anything is said.
  std::vector<std::string> Families() const;

 private:
  const Speed& At(int threads) const;

  std::shared_ptr<const Rates> base_;
  double many_weights_ = 0;
  std::map<std::string, double> limits_;
  std::map<int, Speed> speeds_;
};

/// The description of this machine with an instruction set: that of the file which TVM_BYOC_RATES
/// names, else of the one in the user's cache, else the one that was compiled in for this CPU, else
/// for any with the instruction set. Files are read once in a process.
struct Described {
  std::string name;    // "AuthenticAMD-25-17-avx512_core_bf16"
  std::string file;    // in the user's cache
  std::string source;  // a file, or "compiled in for" a machine
  std::string hash;    // of its text
  std::shared_ptr<const Rates> rates;
};
const Described& DescribedHere();

struct Machine {
  /// This one, and the threads that OpenMP has now.
  Machine();

  /// Any CPU with an instruction set, and as many threads.
  explicit Machine(const Isa& isa);

  /// Seconds of work by its rates.
  double Seconds(const std::string& family, const Work& work, double times = 1) const {
    return rates->Seconds(family, work, threads, times);
  }

  double Limit(const char* name) const { return rates->Limit(name); }

  /// Bytes of the second-level cache, the part of it that a limit says.
  int64_t PartOfCache(const char* name) const {
    return static_cast<int64_t>(Limit(name) * static_cast<double>(cache_bytes));
  }

  /// The threads that are worth waking for so many multiplications: one for fewer than a limit.
  int64_t ThreadsFor(int64_t products, const char* least) const {
    return static_cast<double>(products) < Limit(least) ? 1 : threads;
  }

  Isa isa;
  int threads;
  int64_t cache_bytes;  // of the second-level cache of a core
  std::shared_ptr<const Rates> rates;
  /// oneDNN's answer to a description. It knows this machine only.
  PrimitiveDesc (*ask)(const OpDesc& op) = AskOneDnn;
};

}  // namespace tvm_byoc_dnnl
