// SPDX-License-Identifier: Apache-2.0
// The machine that a plan is made for: this one, or another, to ask what would be chosen there.
#ifndef TVM_BYOC_DNNL_DNNL_MACHINE_H_
#define TVM_BYOC_DNNL_DNNL_MACHINE_H_

#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/graph.h"
#include "dnnl/op_desc.h"
#include "dnnl/rates.h"
#include "kernels/byoc_isa.h"

namespace tvm_byoc_dnnl {

/// An instruction set, named as oneDNN does. Every question about it is answered here.
class Isa {
 public:
  /// What CPU, operating system and user (ONEDNN_MAX_CPU_ISA) allow in this process.
  Isa() : Isa(dnnl::get_effective_cpu_isa()) {}
  explicit Isa(dnnl::cpu_isa set) : set_(set) {}

  /// "avx512_core_vnni"
  const char* Name() const;

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

  Isa isa;
  int threads;
  int64_t cache_bytes;  // of the second-level cache of a core
  std::shared_ptr<const Rates> rates;
  /// oneDNN's answer to a description. It knows this machine only.
  PrimitiveDesc (*ask)(const OpDesc& op, const dnnl::engine& engine) = AskOneDnn;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_MACHINE_H_
