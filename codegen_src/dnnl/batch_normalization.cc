// SPDX-License-Identifier: Apache-2.0
// Batch normalisation: by our kernel where the channels lie innermost, else by oneDNN's primitive.
// Only the kernel reads several sources where they are; for the primitive they are joined first.
// What reads the result may normalise the sources itself instead (OfferProduct).
#include <algorithm>

#include "dnnl/kernel_call.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_batch_norm.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kBatchNorm = {"batch_norm", "batch_norm", byoc_batch_norm};

constexpr int kStatistics = 4;  // they stand behind the first source

std::vector<int> Sources(const NodeView& n) {
  std::vector<int> sources = {n.In(0)};
  for (int i = 1 + kStatistics; i < n.OwnInputs(); ++i) sources.push_back(n.In(i));
  return sources;
}

std::vector<OpDesc> Describe(const NodeView& n, const std::vector<PostOpDesc>& post_ops) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::batch_normalization;
  op.epsilon = static_cast<float>(n.a.epsilon);
  op.flags = dnnl_use_global_stats | dnnl_use_scale | dnnl_use_shift;
  op.post_ops = post_ops;
  return n.OnEach(op, {n.AsIs(DNNL_ARG_SRC, 0), n.AsDense(DNNL_ARG_SRC, 0)},
                  {n.AsDense(DNNL_ARG_SCALE, 1), n.AsDense(DNNL_ARG_SHIFT, 2),
                   n.AsDense(DNNL_ARG_MEAN, 3), n.AsDense(DNNL_ARG_VARIANCE, 4)});
}

/// Whether all is float32 and a source has its channels innermost: if others have to be reordered,
/// that takes no longer than to join the sources.
bool SuitsKernel(const NodeView& n) {
  const Lowering& l = n.lowering;
  for (int i = 0; i < n.OwnInputs(); ++i) {
    if (n.DTypeOf(i) != DType::kFloat32) return false;
  }
  const std::vector<int> sources = Sources(n);
  return n.OutDType() == DType::kFloat32 &&
         std::any_of(sources.begin(), sources.end(), [&](int source) {
           const MemoryDesc md = ChannelsLast(l.shape(source), DType::kFloat32);
           return SameLayout(l.Layout(source), md);
         });
}

bool EmitBatchNorm(const NodeView& n, const std::vector<PostOpDesc>& post_ops) {
  const std::optional<byoc_isa> isa = n.lowering.isa().Vectors();
  if (!isa || !SuitsKernel(n) || post_ops.size() > 1) return false;
  byoc_batch_norm_params p{};
  for (const PostOpDesc& post_op : post_ops) {
    const bool is_relu = post_op.alg == dnnl::algorithm::eltwise_relu && post_op.alpha == 0;
    if (!is_relu || post_op.of_numbers) return false;
    p.has_relu = 1;
  }
  Lowering& l = n.lowering;
  p.isa = *isa;
  p.channels = n.OutShape()[1];
  p.pixels = ElementCount(n.OutShape()) / p.channels;
  p.epsilon = n.a.epsilon;
  p.threads = n.lowering.machine().ThreadsFor(p.pixels * p.channels, "wake_batch_norm");
  std::vector<int64_t> channels;
  std::vector<OpArg> args;
  for (int source : Sources(n)) {
    const Dims& shape = l.shape(source);
    if (shape[1] == 0) continue;
    args.push_back({DNNL_ARG_MULTIPLE_SRC + static_cast<int>(args.size()), source,
                    ChannelsLast(shape, DType::kFloat32)});
    channels.push_back(shape[1]);
  }
  p.parts = static_cast<int64_t>(channels.size());
  const int roles[kStatistics] = {DNNL_ARG_SCALE, DNNL_ARG_SHIFT, DNNL_ARG_MEAN, DNNL_ARG_VARIANCE};
  for (int i = 0; i < kStatistics; ++i) args.push_back(n.AsDense(roles[i], 1 + i));
  Normalized normalized{-1, args, AsParams(p, channels)};
  args.push_back({DNNL_ARG_DST, n.output, ChannelsLast(n.OutShape(), DType::kFloat32)});

  Step step = StepOf(kBatchNorm, KernelImpl("batch_norm", p.isa), normalized.params);
  step.op.kind = dnnl::primitive::kind::batch_normalization;  // for reports
  step.op.post_ops = post_ops;
  l.EmitKernel(std::move(step), args, p.threads * byoc_batch_norm_scales(p.channels) * 4);
  l.NoteNormalized(n.output, std::move(normalized));
  return true;
}

/// The sources joined, and then normalised.
void LowerJoined(const NodeView& n) {
  const int joined = n.lowering.NewValue(n.OutShape(), n.DTypeOf(0), /*constant=*/false);
  Node concat = NewNode(Kind::kConcat, Sources(n), joined);
  concat.attrs.axis = 1;
  Node norm =
      NewNode(Kind::kBatchNormalization, {joined, n.In(1), n.In(2), n.In(3), n.In(4)}, n.output);
  norm.attrs = n.a;
  n.lowering.LowerInSteps({concat, norm});
}

}  // namespace

static bool FuseBatchNormalization(const NodeView& n, const std::vector<PostOpDesc>& post_ops) {
  if (EmitBatchNorm(n, post_ops)) return true;
  const bool is_one = n.OwnInputs() == 1 + kStatistics;
  return is_one && n.lowering.Emit(Describe(n, post_ops), /*accept_reference=*/false);
}

static void LowerBatchNormalization(const NodeView& n) {
  if (FuseBatchNormalization(n, {})) return;
  if (n.OwnInputs() > 1 + kStatistics) return LowerJoined(n);
  EmitOrFail(n.lowering, Describe(n, {}));
}

const KindRow kBatchNormalizationRow = {nullptr, LowerBatchNormalization, FuseBatchNormalization};

}  // namespace tvm_byoc_dnnl
