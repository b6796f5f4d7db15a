// SPDX-License-Identifier: Apache-2.0
// The part of the lowering that chooses: which implementation, in which layouts, over whose memory.
#include <algorithm>
#include <limits>

#include "common/support/error.h"
#include "dnnl/candidate.h"
#include "dnnl/execute.h"
#include "dnnl/lowering.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// Primitives that may write their result over this source.
int OverwritableArg(PrimitiveKind kind) {
  switch (kind) {
    case PrimitiveKind::eltwise:
    case PrimitiveKind::binary:
    case PrimitiveKind::softmax:
    case PrimitiveKind::batch_normalization:
    case PrimitiveKind::layer_normalization:
      return DNNL_ARG_SRC;
    default:
      return 0;
  }
}

/// The products that a primitive adds up, those with the padding of its weights included; 0 where
/// it is no product of matrices.
double ProductsOf(const OpDesc& op, const PrimitiveDesc& pd) {
  const Dims dst = op.Find(DNNL_ARG_DST)->md.get_dims();
  const auto results = static_cast<double>(ElementCount(dst));
  switch (op.kind) {
    case PrimitiveKind::matmul:
      return results * static_cast<double>(op.Find(DNNL_ARG_SRC)->md.get_dims().back());
    case PrimitiveKind::convolution:
    case PrimitiveKind::deconvolution:
      return results / static_cast<double>(dst[1]) *
             static_cast<double>(ElementCount(pd.Arg(DNNL_ARG_WEIGHTS).get_padded_dims()));
    default:
      return 0;
  }
}

/// The rows of a softmax or of a mean, which take their time whatever their length.
double RowsOf(const OpDesc& op) {
  const Dims dims = op.Find(DNNL_ARG_DST)->md.get_dims();
  const auto results = static_cast<double>(ElementCount(dims));
  if (op.kind == PrimitiveKind::reduction) return results;
  return op.kind == PrimitiveKind::softmax ? results / static_cast<double>(dims[op.axis]) : 0;
}

/// Whether a value, or a part of it, lies in a buffer.
bool AnyIn(int buffer, const std::vector<Place>& places) {
  return std::any_of(places.begin(), places.end(),
                     [&](const Place& place) { return place.buffer == buffer; });
}

}  // namespace

/// Adds the bytes of its operands and its result to the work of a candidate.
void Lowering::CountBytes(Candidate* candidate) const {
  Work& work = candidate->work;
  work.weights = work.bytes = work.reordered = work.normalized = 0;
  const bool is_call = candidate->call.has_value();
  const auto count = [&](const OpArg& arg, const MemoryDesc& md) {
    auto bytes = static_cast<double>(md.get_size());
    if (is_call && candidate->call->packing && candidate->call->packing->arg == arg.arg)
      bytes = static_cast<double>(candidate->call->packing->bytes);
    const bool constant = values_[arg.value].constant;
    (constant ? work.weights : work.bytes) += bytes;
    if (constant) return;
    const std::optional<View> slice = SliceOfConcat(arg.value);
    // What is made only for this reader, which another candidate may do without.
    const bool is_shuffled = ShuffleOf(arg.value) && IsReadOnce(arg.value);
    if (arg.IsInput() && NormalizationOf(arg.value)) work.normalized += bytes;
    const bool is_copied = arg.IsInput() ? is_shuffled || !FindPlace(arg.value, md)
                                         : slice && !SameLayout(md, slice->md);
    if (is_copied) work.reordered += bytes;
  };
  if (is_call) {  // the operands of its post-ops are among its arguments
    for (const OpArg& arg : candidate->call->args) count(arg, arg.md);
    return;
  }
  const OpDesc& op = candidate->op;
  for (const OpArg& arg : op.args) count(arg, candidate->pd.Arg(arg.arg));
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    if (op.post_ops[i].kind != PostOpDesc::Kind::kBinary) continue;
    const int arg = PostOpArg(i);
    count({arg, op.post_ops[i].value, op.post_ops[i].md}, candidate->pd.Arg(arg));
  }
}

/// The forms in which plans for other shapes hold a constant of the graph.
std::vector<PackedKey> Lowering::PackedForms(int value) const {
  const bool is_known = packed_ != nullptr && values_[value].constant &&
                        value < static_cast<int>(graph_.tensors.size());
  return is_known ? packed_->FormsOf(value) : std::vector<PackedKey>();
}

/// Whether a candidate needs weights in another form than those in which other plans hold them.
bool Lowering::PacksAnew(const Candidate& candidate) const {
  const auto& call = candidate.call;
  const std::vector<OpArg>& args = call ? call->args : candidate.op.args;
  return std::any_of(args.begin(), args.end(), [&](const OpArg& arg) {
    const std::vector<PackedKey> forms = PackedForms(arg.value);
    if (forms.empty()) return false;
    PackedKey key{arg.value, call ? arg.md : candidate.pd.Arg(arg.arg), nullptr};
    if (call && call->packing && call->packing->arg == arg.arg)
      key = {arg.value, Dense({call->packing->bytes}, DType::kUInt8), call->packing->kernel};
    return std::find(forms.begin(), forms.end(), key) == forms.end();
  });
}

/// What a candidate costs among the plans that there are: one that needs weights in another form
/// must be much cheaper.
double Lowering::CostHere(const Candidate& candidate) {
  const double cost = Cost(candidate);
  if (!reuses_ || !PacksAnew(candidate)) return cost;
  spent_.least_anew = std::min(spent_.least_anew, cost);
  return cost * machine_.Limit("repacked");
}

/// oneDNN's answer; an empty one if it has no implementation, or only one with a known fault, which
/// is then described in `fault`.
PrimitiveDesc Lowering::Ask(const OpDesc& op, std::string* fault) const {
  PrimitiveDesc pd = machine_.ask(op);
  const char* why = pd ? KnownFault(op, pd, isa()) : nullptr;
  if (why == nullptr) return pd;
  if (fault != nullptr) *fault = Cat(pd.impl(), " is not used: ", why);
  return PrimitiveDesc();
}

/// The cheapest primitive; of several questions, also by the kernels of ours that could take the
/// place of their answers.
Candidate Lowering::Choose(const std::vector<OpDesc>& descriptions) {
  Candidate best;
  double least = std::numeric_limits<double>::infinity();
  for (const OpDesc& op : descriptions) {
    Candidate candidate;
    candidate.op = op;
    candidate.pd = Ask(op, &fault_);
    if (!candidate.pd) continue;
    candidate.impl = candidate.pd.impl();
    candidate.work.products = ProductsOf(op, candidate.pd);
    candidate.work.vectors = RowsOf(op);
    CountBytes(&candidate);
    double cost = CostHere(candidate);
    if (descriptions.size() > 1) BestKernel(candidate, &cost);
    if (cost >= least) continue;
    best = std::move(candidate);
    least = cost;
  }
  return best;
}

/// The kernel of ours that costs least, less than `least`, which becomes its cost.
std::optional<Candidate> Lowering::BestKernel(const Candidate& primitive, double* least) {
  std::optional<Candidate> best;
  for (Offer* offer : kOffers) {
    for (Candidate& candidate : offer(primitive, *this)) {
      CountBytes(&candidate);
      const double cost = CostHere(candidate);
      if (cost >= *least) continue;
      best = std::move(candidate);
      *least = cost;
    }
  }
  return best;
}

/// The cheapest kernel of ours for this operation if it costs less than the primitive, or if there
/// is no primitive, or one that hides a NaN; else the primitive.
Candidate Lowering::AskKernels(Candidate primitive) {
  double least = std::numeric_limits<double>::infinity();
  if (primitive.pd) {
    CountBytes(&primitive);  // its layouts are decided now
    if (!HidesNan(primitive.op)) least = CostHere(primitive);
  }
  std::optional<Candidate> best = BestKernel(primitive, &least);
  return best ? std::move(*best) : std::move(primitive);
}

/// The same choice described otherwise, if oneDNN answers with the same implementation and the same
/// layouts of all that was left open; else nothing.
std::optional<Candidate> Lowering::Variant(const Candidate& choice, const OpDesc& op) const {
  PrimitiveDesc pd = Ask(op);
  if (!pd || choice.impl != pd.impl()) return std::nullopt;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (!IsAny(op.args[i].md)) continue;
    int arg = op.args[i].arg;
    if (!SameLayout(pd.Arg(arg), choice.pd.Arg(arg))) return std::nullopt;
  }
  return Candidate{op, pd, choice.impl, {}, choice.work};
}

/// If the choice would reorder an input: asks for the same implementation with the layout that the
/// input has.
void Lowering::KeepInputLayouts(Candidate* choice) const {
  for (size_t i = 0; i < choice->op.args.size(); ++i) {
    const OpArg& arg = choice->op.args[i];
    if (!arg.IsInput() || !IsAny(arg.md)) continue;
    std::vector<MemoryDesc> present;
    if (!values_[arg.value].constant) present.push_back(Layout(arg.value));
    for (const PackedKey& form : PackedForms(arg.value)) {
      if (form.packing == nullptr && form.md.get_dims() == arg.md.get_dims())
        present.push_back(form.md);
    }
    const MemoryDesc wanted = choice->pd.Arg(arg.arg);
    if (std::any_of(present.begin(), present.end(),
                    [&](const MemoryDesc& md) { return SameLayout(md, wanted); })) {
      continue;
    }
    for (const MemoryDesc& md : present) {
      OpDesc op = choice->op;
      op.args[i].md = md;
      std::optional<Candidate> variant = Variant(*choice, op);
      if (!variant) continue;
      *choice = std::move(*variant);
      break;
    }
  }
}

/// Whether nobody reads `place` of `value` after this node, so that `result` may take its memory.
bool Lowering::MayOverwrite(int value, const Place& place, int result) const {
  const Buffer& buffer = program_.buffers[place.buffer];
  if (values_[value].constant) return false;
  if (buffer.alias >= 0) {  // only the output that is delivered there, and as it is
    const MemoryDesc whole = Dense(values_[result].shape, values_[result].dtype);
    if (graph_.outputs[buffer.alias] != result || !SameLayout(place.md, whole)) return false;
  } else if (buffer.home != Home::kArena) {
    return false;
  }
  if (place.offset != 0 ||
      place.md.get_size() != static_cast<size_t>(program_.buffers[place.buffer].bytes)) {
    return false;  // a part of something
  }
  return std::none_of(values_.begin(), values_.end(), [&](const Value& other) {
    return other.last_use > current_node_ && AnyIn(place.buffer, other.places);
  });
}

/// Turns the first `add` of a dying full-size operand into a sum over its memory.
std::optional<Place> Lowering::SumInPlace(Candidate* choice) const {
  if (!IsProduct(choice->op.kind)) return std::nullopt;
  OpDesc op = choice->op;
  auto add = std::find_if(op.post_ops.begin(), op.post_ops.end(), [](const PostOpDesc& p) {
    return p.kind == PostOpDesc::Kind::kBinary && p.alg == dnnl::algorithm::binary_add &&
           IsAny(p.md);
  });
  if (add == op.post_ops.end()) return std::nullopt;
  const Value& operand = values_[add->value];
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  if (operand.dtype != values_[dst.value].dtype) return std::nullopt;
  const MemoryDesc expected = choice->pd.Arg(DNNL_ARG_DST);
  for (const Place& place : operand.places) {
    if (!SameLayout(place.md, expected) || !MayOverwrite(add->value, place, dst.value)) {
      continue;
    }
    // Whether the operation itself reads that memory in another role.
    const auto reads = [&](int value) { return AnyIn(place.buffer, values_[value].places); };
    bool shared = std::any_of(op.args.begin(), op.args.end(),
                              [&](const OpArg& a) { return a.IsInput() && reads(a.value); });
    for (auto p = op.post_ops.begin(); p != op.post_ops.end(); ++p) {
      shared |= p != add && p->kind == PostOpDesc::Kind::kBinary && reads(p->value);
    }
    for (const ScalingDesc& s : op.scalings) {
      for (int value : {s.scale, s.zero_point}) shared |= value >= 0 && reads(value);
    }
    if (shared) continue;
    add->kind = PostOpDesc::Kind::kSum;
    std::optional<Candidate> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
    return place;
  }
  return std::nullopt;
}

bool Lowering::Overwrites(const OpDesc& op, int value) const {
  const auto holds_value = [&](const Place& sum) {
    return AnyIn(sum.buffer, values_[value].places);
  };
  return std::any_of(op.post_ops.begin(), op.post_ops.end(), [&](const PostOpDesc& post_op) {
    if (post_op.kind != PostOpDesc::Kind::kSum) return false;
    const auto& sums = values_[post_op.value].places;
    return std::any_of(sums.begin(), sums.end(), holds_value);
  });
}

std::optional<Place> Lowering::OverwriteSource(const Candidate& choice) const {
  const OpArg* src = choice.op.Find(OverwritableArg(choice.op.kind));
  if (src == nullptr) return std::nullopt;
  for (const OpArg& arg : choice.op.args) {
    if (arg.IsInput() && &arg != src && arg.value == src->value) return std::nullopt;
  }
  for (const PostOpDesc& post_op : choice.op.post_ops) {
    if (post_op.value == src->value) return std::nullopt;
  }
  const MemoryDesc expected = choice.pd.Arg(DNNL_ARG_DST);
  const int result = choice.op.Find(DNNL_ARG_DST)->value;
  if (!SameLayout(expected, choice.pd.Arg(src->arg))) return std::nullopt;
  for (const Place& place : values_[src->value].places) {
    if (SameLayout(place.md, expected) && MayOverwrite(src->value, place, result)) return place;
  }
  return std::nullopt;
}

/// The place in a caller's output that this value may be written to, as the output wants it.
std::optional<Place> Lowering::OutputPlace(int value) const {
  const auto& destination = destinations_[value];
  if (!destination || values_[value].constant || outputs_[destination->output].is_written) {
    return std::nullopt;
  }
  const int buffer = outputs_[destination->output].buffer;
  if (program_.buffers[buffer].alias >= 0 && IsReadFrom(buffer)) return std::nullopt;
  MemoryDesc md = Strided(values_[value].shape, values_[value].dtype, destination->strides);
  return Place{buffer, 0, md};
}

std::optional<MemoryDesc> Lowering::OutputLayout(int value) const {
  const std::optional<Place> place = OutputPlace(value);
  return place ? std::optional<MemoryDesc>(place->md) : std::nullopt;
}

std::optional<View> Lowering::SliceOfConcat(int value) const {
  const bool is_known = growth_ == nullptr && value < static_cast<int>(slices_.size());
  if (!is_known || !slices_[value]) return std::nullopt;
  const Slice& slice = *slices_[value];
  const Value& part = values_[value];
  const Value& whole = values_[slice.whole];
  if (part.constant || !IsOfOneDnn(part.dtype)) return std::nullopt;
  Dims begin(part.shape.size(), 0);
  begin[1] = slice.first_channel;
  return SliceView(ChannelsLast(whole.shape, whole.dtype), begin, part.shape,
                   Dims(begin.size(), 1));
}

/// Whether this node or a later one reads what lies in a buffer.
bool Lowering::IsReadFrom(int buffer) const {
  return std::any_of(values_.begin(), values_.end(), [&](const Value& value) {
    return value.last_use >= current_node_ && AnyIn(buffer, value.places);
  });
}

std::optional<Place> Lowering::WriteToOutput(Candidate* choice) {
  const int value = choice->op.Find(DNNL_ARG_DST)->value;
  std::optional<Place> place = OutputPlace(value);
  if (!place) return std::nullopt;
  if (!SameLayout(choice->pd.Arg(DNNL_ARG_DST), place->md)) {
    OpDesc op = choice->op;
    op.Find(DNNL_ARG_DST)->md = place->md;
    std::optional<Candidate> variant = Variant(*choice, op);
    if (!variant) return std::nullopt;
    *choice = std::move(*variant);
  }
  outputs_[destinations_[value]->output].is_written = true;
  return place;
}

bool Lowering::Emit(const std::vector<OpDesc>& descriptions, bool accept_reference) {
  spent_.least_anew = std::numeric_limits<double>::infinity();
  Candidate choice = Choose(descriptions);
  const bool is_refused =
      choice.pd && IsReference(choice.op.kind, choice.impl) && !accept_reference;
  if (!choice.pd || is_refused) {
    double least = std::numeric_limits<double>::infinity();
    std::optional<Candidate> kernel;  // in the layouts that the reference implementation has
    if (is_refused) kernel = BestKernel(choice, &least);
    choice = kernel ? std::move(*kernel) : Candidate();
    if (!kernel) choice.op = descriptions.front();
  }
  std::optional<Place> place;
  if (choice.pd) {
    KeepInputLayouts(&choice);
    place = WriteToOutput(&choice);
    if (!place) place = SumInPlace(&choice);
    if (!place) place = OverwriteSource(choice);
  }
  if (!choice.call) choice = AskKernels(std::move(choice));
  if (!choice.pd && !choice.call) return false;
  const double cost = Cost(choice);
  spent_.total += cost;
  program_.known_seconds += std::max(cost - ReorderCost(choice, machine_), 0.0);
  spent_.excess += std::max(cost - spent_.least_anew, 0.0);
  if (choice.call) {
    EmitCall(choice, place);
  } else {
    EmitPrimitive(std::move(choice), place);
  }
  return true;
}

}  // namespace tvm_byoc_dnnl
