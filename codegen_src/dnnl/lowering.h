// SPDX-License-Identifier: Apache-2.0
// Static graph -> program: primitive descriptors in order, with the layouts that they chose, the
// reorders between them, and a place in memory for every value.
#pragma once

#include <deque>
#include <dnnl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/graph.h"
#include "common/growth.h"
#include "common/memory_plan.h"
#include "common/pace.h"
#include "dnnl/candidate.h"
#include "dnnl/layout.h"
#include "dnnl/machine.h"

namespace tvm_byoc_dnnl {

/// The place of a value in memory, in one of its layouts.
struct Place {
  int buffer = -1;
  int64_t offset = 0;  // in bytes, from the start of the buffer
  MemoryDesc md;
};

struct StepArg {
  int arg = 0;  // DNNL_ARG_*
  Place place;
};

/// One step of initialisation or of a call: a primitive of oneDNN, or a kernel of ours.
/// Each is run (execute.cc), printed as source (emit.cc) and described (report.cc).
struct Step {
  int node = -1;   // of the graph; the number of nodes for the copies to outputs
  int inner = -1;  // a node before it that the step computes as well
  std::string impl;
  std::string fault;          // of a primitive that was refused before this one
  bool conversion = false;    // a reorder that no node asked for
  std::vector<StepArg> args;  // the scratchpad stands last
  // a primitive
  OpDesc op;
  PrimitiveDesc pd;
  // or a kernel, which takes its arguments in this order
  const Kernel* kernel = nullptr;
  std::vector<int64_t> params;
};

/// The nodes that a step of a node computes.
std::vector<const Node*> NodesOf(const Graph& graph, const Step& step);

/// The content of a packed buffer that plans may share: a tensor of the graph in a layout, or in
/// the form that a kernel made.
struct PackedKey {
  int tensor = -1;
  MemoryDesc md;
  const Kernel* packing = nullptr;

  bool operator==(const PackedKey& other) const {
    return tensor == other.tensor && md == other.md && packing == other.packing;
  }
};

/// A value whose channels are those of another one in the order of oneDNN's shuffle.
struct Shuffled {
  int source = -1;
  int64_t group_size = 1;
};

/// A value that our batch normalisation made: its node, and the arguments and parameters of the
/// kernel but for the result, by which another kernel can normalise what it reads.
struct Normalized {
  int node = -1;
  std::vector<OpArg> args;
  std::vector<int64_t> params;
};

class PackedStore;

struct Program {
  std::vector<Buffer> buffers;
  std::vector<PackedKey> packed;  // by index of the kPacked buffers
  std::vector<Step> init;         // run once; touch only constant and packed buffers
  std::vector<Step> steps;        // run per call
  int64_t arena_bytes = 0;
  double known_seconds = 0;  // of a call, without changes of layout in front of candidates
  bool knows_all = true;     // or there are steps for which nobody knows what they take
};

/// The buffers of the executor; it separates packed constants from those that only packing needs.
std::vector<byoc_buffer> ListBuffers(const Program& program);

class NodeView;

/// The state of lowering one graph, and the operations that the kinds are built from.
class Lowering {
 public:
  Lowering(const Graph& graph, const Shapes& shapes, CostModel cost = DefaultCost,
           const Machine& machine = Machine());

  /// The forms in which plans for other shapes hold the weights. `reuses`: they are preferred to
  /// others, even where these are somewhat faster.
  void Share(const PackedStore* packed, bool reuses) {
    packed_ = packed;
    reuses_ = reuses;
  }

  /// The part of a program's cost that other forms of the weights would save.
  double Excess() const { return spent_.total > 0 ? spent_.excess / spent_.total : 0; }

  /// Plans for caches of any length up to the one that the shapes have (Planner::MakeGrowingPlan).
  void Grow(const Growth& growth);

  /// While caches grow, and for a node that joins rows or reads a cache: the value that is the
  /// length, which steps read.
  std::optional<int> GrowingLength() const;

  /// Throws Error(kUnsupported) naming the node for which there is no implementation.
  Program Run();

  const Dims& shape(int value) const { return values_[value].shape; }
  DType dtype(int value) const { return values_[value].dtype; }
  bool IsConstant(int value) const { return values_[value].constant; }
  /// The layout in which the value was made.
  const Place& Primary(int value) const { return values_[value].places.at(0); }
  const MemoryDesc& Layout(int value) const { return Primary(value).md; }

  /// A value beside the graph's tensors.
  int NewValue(const Dims& shape, DType dtype, bool constant);
  /// A value of float32 that stands for one of 16 bits, in these; in an output of the caller's, if
  /// it goes there.
  int Narrowed(int value, DType dtype, std::optional<int> output = {});

  /// A dense view of a value in another shape.
  int Reshaped(int value, const Dims& shape);

  /// A value of another shape in which to compute `value`; it is written to the caller's output if
  /// `value` would be.
  int NewOutput(int value, const Dims& shape);

  /// Emits the cheapest of the candidates: a primitive for one of these descriptions, or a kernel
  /// of ours. Inputs are reordered to the layouts it expects. False if there is none, or only a
  /// reference one that `accept_reference` rules out.
  bool Emit(const std::vector<OpDesc>& descriptions, bool accept_reference);

  /// Lowers nodes that together do what the current node does; values beside the graph's tensors
  /// connect them.
  void LowerInSteps(const std::vector<Node>& nodes);

  double Cost(const Candidate& candidate) const { return cost_(candidate, machine_); }

  const Machine& machine() const { return machine_; }
  const Isa& isa() const { return machine_.isa; }

  /// The layout that the caller's output expects of a value, if the value goes there.
  std::optional<MemoryDesc> OutputLayout(int value) const;

  /// Where a concat joins a value with others: the slice of its result that the value becomes, if
  /// its channels lie innermost.
  std::optional<View> SliceOfConcat(int value) const;

  /// Where the channels of a value come from, if a shuffle of them made it.
  const std::optional<Shuffled>& ShuffleOf(int value) const { return values_[value].shuffled; }

  /// How our batch normalisation made a value that nothing but one node reads, if it did.
  const Normalized* NormalizationOf(int value) const {
    const std::optional<Normalized>& normalized = values_[value].normalized;
    return normalized && IsReadOnce(value) ? &*normalized : nullptr;
  }

  /// Remembers how the current node made its value, whose sources may be read in place of it.
  void NoteNormalized(int value, Normalized normalized);

  /// Whether nothing but one node reads a value.
  bool IsReadOnce(int value) const {
    return value < static_cast<int>(uses_.size()) && uses_[value] == 1;
  }

  /// Whether an operation with a sum over its result's memory overwrites what a value lies in.
  bool Overwrites(const OpDesc& op, int value) const;

  /// Whether there is memory that holds a value, or parts of it already.
  bool HasPlace(int value) const { return !values_[value].places.empty(); }

  /// `value` lies here (a view of another value's place).
  void SetPlace(int value, Place place) { values_[value].places.push_back(std::move(place)); }

  /// The value in exactly this layout; a reorder if it has never been in it (to the caller's
  /// output, if `md` is what the output expects).
  Place PlaceIn(int value, const MemoryDesc& md);

  /// Gives a value its own memory, in the caller's output if `md` is what the output expects.
  Place Allocate(int value, const MemoryDesc& md);

  /// Copies a value into a part of another (whose place is set already).
  void Copy(int from, int into, const Place& part);

  /// Has a kernel of ours read the inputs and write the output (DNNL_ARG_DST), all in the layouts
  /// of their arguments. The step names its kernel and parameters, and its post-ops for reports.
  /// `scratch_bytes`: of memory that the kernel may use while it runs. `seconds`: what it costs, if
  /// that is known.
  void EmitKernel(Step step, const std::vector<OpArg>& args, int64_t scratch_bytes = 0,
                  std::optional<double> seconds = {});

  /// Arguments in a form of `bytes` bytes that a kernel makes of them: of constants once, which
  /// plans for other shapes share, as `tensor` and `bytes` say which it is; of others per call.
  int Pack(const Kernel& kernel, const std::vector<int64_t>& params, const std::vector<OpArg>& args,
           int tensor, int64_t bytes);

  /// Fills the whole place of a value with these bytes of one element.
  void Fill(int value, const std::string& element);

  /// Stores a value with another dtype, scale and zero point (scaling.cc).
  void Convert(int from, const Scaling& of_source, int to, const Scaling& of_result,
               bool has_groups);

  /// Throws Error(kUnsupported), with the fault of a primitive that was refused.
  [[noreturn]] void FailUnsupported(
      const std::string& message = "oneDNN has no implementation for it here") const;

 private:
  struct Value {
    Dims shape;
    DType dtype = DType::kFloat32;
    bool constant = false;
    int last_use = -1;
    std::optional<Shuffled> shuffled;
    std::optional<Normalized> normalized;
    std::vector<Place> places;
  };
  using LastUses = std::vector<std::pair<int, int>>;  // value, its last use

  LastUses Protect(const Node& node, size_t first);
  void Restore(const LastUses& last_uses);
  int NewValueLike(int value);
  void PlaceArguments();
  int Given(int tensor);
  void Widen();
  /// A cache is as the call gives it, also where oneDNN does not have its dtype.
  void Keep(const Node& cache);
  void ConvertBits(int from, int to);
  void LowerNode(const Node& node);
  void LowerScaled(const Node& node);
  int Spread(int value, const Scaling& scaling, const Dims& operand, bool is_grouped);
  void ConvertInSteps(int from, const Scaling& scaling, int to, bool is_grouped);
  void LowerInFloat(const Node& node);
  void LowerBare(const NodeView& n, bool tried);
  void NoteShuffle(const Node& node);
  void KeepFor(int value, int source);
  bool HasElements(const Node& node) const;
  bool EmitFused(const Node& node, size_t count);
  void ApplyPostOps(const Node& node, size_t first, int value);
  std::vector<PostOpDesc> PostOps(const Node& node) const;
  void DeliverOutputs();
  void DropDeadSteps();
  PrimitiveDesc Ask(const OpDesc& op, std::string* fault = nullptr) const;
  Candidate Choose(const std::vector<OpDesc>& descriptions);
  std::optional<Candidate> BestKernel(const Candidate& primitive, double* least);
  void CountBytes(Candidate* candidate) const;
  const Place* FindPlace(int value, const MemoryDesc& md) const;
  double CostHere(const Candidate& candidate);
  std::vector<PackedKey> PackedForms(int value) const;
  bool PacksAnew(const Candidate& candidate) const;
  Candidate AskKernels(Candidate primitive);
  std::optional<Candidate> Variant(const Candidate& choice, const OpDesc& op) const;
  void KeepInputLayouts(Candidate* choice) const;
  std::optional<Place> SumInPlace(Candidate* choice) const;
  std::optional<Place> OverwriteSource(const Candidate& choice) const;
  std::optional<Place> WriteToOutput(Candidate* choice);
  void EmitPrimitive(Candidate choice, const std::optional<Place>& place);
  void EmitCall(const Candidate& choice, const std::optional<Place>& place);
  std::optional<Place> PlaceInConcat(int value, const MemoryDesc& md);
  Place PlaceResult(int value, std::optional<Place> place, const MemoryDesc& md);
  void Flush(const Place& weights);
  Place NewPlace(int value, const MemoryDesc& md);
  std::optional<Place> OutputPlace(int value) const;
  bool IsReadFrom(int buffer) const;
  bool MayOverwrite(int value, const Place& place, int result) const;
  int AddBuffer(bool constant, int64_t bytes, PackedKey key);
  void AddStep(Candidate choice, std::vector<StepArg> args, bool conversion);
  void AddStep(Step step, const MemoryDesc& scratchpad);
  bool AllConstant(const std::vector<StepArg>& args) const;
  bool AllConstant(const std::vector<int>& values) const;

  const Graph& graph_;
  const CostModel cost_;
  const Machine machine_;
  const PackedStore* packed_ = nullptr;
  bool reuses_ = false;
  struct {
    double least_anew = 0;         // that of the current node with weights in another form
    double total = 0, excess = 0;  // that of the chosen candidates, and what it is above that
  } spent_;
  const Growth* growth_ = nullptr;
  int length_ = -1;           // a value, while caches grow
  std::deque<Value> values_;  // the kinds hold references while they add values
  std::vector<std::optional<Destination>> destinations_;
  std::vector<std::optional<Slice>> slices_;  // of the graph's tensors
  std::vector<int> uses_;                     // of the graph's tensors
  struct Output {
    int buffer;
    bool is_written = false;
  };
  std::vector<Output> outputs_;
  std::vector<std::pair<int, int>> widened_;  // arguments of a dtype that oneDNN lacks: given, made
  int current_node_ = 0;
  std::string fault_;  // why a primitive of the current node was refused, if one was
  Program program_;
};

/// Those of the node's operands and of its result, as attributes. `is_swapped`: the primitive takes
/// the first two operands in the other order.
std::vector<ScalingDesc> Scalings(const Node& node, const Lowering& lowering,
                                  bool is_swapped = false);

}  // namespace tvm_byoc_dnnl
