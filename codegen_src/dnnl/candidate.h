// SPDX-License-Identifier: Apache-2.0
// The ways to compute an operation (primitives of oneDNN in several layouts, kernels of ours), and
// their costs, by which one of them is chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/graph.h"
#include "dnnl/machine.h"
#include "dnnl/op_desc.h"
#include "kernels/byoc_kernel.h"

namespace tvm_byoc_dnnl {

/// A kernel of ours: byoc_<header>.h defines the function byoc_<name>, and the lowering that calls
/// it includes it, as emitted source does.
struct Kernel {
  const char* name;
  const char* header;
  byoc_kernel run;
  bool packs_floats = false;  // makes weights that are numbers of float32 again
};

#if BYOC_HAS_AMX
#define BYOC_IF_AMX(run) run
#else
#define BYOC_IF_AMX(run) nullptr  // never offered (HasTiles)
#endif

/// Steps of it are no node's.
extern const Kernel kFill;

/// A kernel of ours in the place of a primitive.
struct KernelCall {
  const Kernel* kernel = nullptr;
  std::vector<int64_t> params;
  /// Its data in order, each in the layout that it takes: inputs, operands of binary and sum
  /// post-ops (PostOpArg), and at the end the result (DNNL_ARG_DST).
  std::vector<OpArg> args;
  int64_t scratch_bytes = 0;  // that it may use while it runs
  int inner = -1;             // a node before it that it computes as well
  /// A constant operand in a form of its own, which a kernel makes once.
  struct Packing {
    int arg = 0;
    const Kernel* kernel = nullptr;
    std::vector<int64_t> params;
    int64_t bytes = 0;
  };
  std::optional<Packing> packing;
};

struct Candidate {
  OpDesc op;                       // the layouts of a primitive may be open ("any")
  PrimitiveDesc pd;                // empty if oneDNN has no primitive for it
  std::string impl;                // "jit:avx2", "winograd_4x4:avx2"
  std::optional<KernelCall> call;  // if a kernel of ours computes it
  Work work;
};

/// Whether an implementation of a primitive is far from the machine's speed: by its name a
/// reference one, or a loop over single elements.
bool IsReference(dnnl::primitive::kind kind, const std::string& impl);

/// Whether it multiplies an unfolded source, which takes longer than the products do.
bool Unfolds(const std::string& impl);

/// The operation without its layouts: "convolution f32 1x64x56x56 f32 64x64x3x3 ... relu". A
/// measurement of a candidate is stored under this key and the candidate's name.
std::string WorkloadKey(const OpDesc& op);

/// The implementation and its layouts: "jit:avx2 f32:acdb:1x64x56x56 ...".
std::string CandidateName(const Candidate& candidate);

/// The estimated or measured seconds of a candidate on a machine. Of equally fast ones the first is
/// taken.
using CostModel = std::function<double(const Candidate&, const Machine&)>;

/// Seconds by the rates of the machine (machine.h), which are fitted to measurements.
double DefaultCost(const Candidate& candidate, const Machine& machine);

/// The part of it that is the changes of layout before the candidate.
double ReorderCost(const Candidate& candidate, const Machine& machine);

/// The candidates that make the same use of a machine (machine.h).
std::string FamilyOf(const Candidate& candidate, const Machine& machine);

class Lowering;

/// Kernels of ours for the operation of `primitive`: it has the layouts that are decided already,
/// or no primitive (an empty `pd`) where oneDNN has none. Nothing if they cannot compute it.
using Offer = std::vector<Candidate>(const Candidate& primitive, const Lowering& values);

/// A new kernel: its function, and its name here.
Offer OfferGroups, OfferDirect, OfferElementwise, OfferInteger, OfferNormalize, OfferWinograd,
    OfferProduct, OfferSplit;
constexpr Offer* kOffers[] = {OfferGroups,    OfferDirect,   OfferElementwise, OfferInteger,
                              OfferNormalize, OfferWinograd, OfferProduct,     OfferSplit};

/// Whether a convolution of images of this rank has too few channels or outputs for a product of
/// matrices: in each of its groups, but it is not depthwise; or, for AVX2, of a picture.
bool IsThin(const Dims& weights, size_t rank, const Machine& machine);

/// Why a primitive that oneDNN accepts is wrong on an instruction set; nullptr if nothing is known.
/// It is treated as if oneDNN had refused it, so that no path (modules, emitted source, symbolic
/// shapes) meets it.
const char* KnownFault(const OpDesc& op, const PrimitiveDesc& pd, const Isa& isa);

/// Whether a primitive for one operation per element hides a NaN, which a kernel of ours, if there
/// is one for it, does not.
bool HidesNan(const OpDesc& op);

/// The times of a graph if they hold in this setting, and the model for all else.
CostModel CostByTimes(const KnownTimes& times, const std::string& setting);

/// See Engine::MeasureCandidates. Products compete: convolutions and products of matrices.
KnownTimes MeasureProducts(const Graph& graph, int rounds);

/// See Engine::DescribeCosts: the "family" of a candidate and the "dtype" that it multiplies, its
/// "amounts" of work and the "seconds_of_each", and those of the changes of layout
/// ("reorder").
json::Object CostsOfProducts(const Graph& graph);

}  // namespace tvm_byoc_dnnl
