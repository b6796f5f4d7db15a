// SPDX-License-Identifier: Apache-2.0
// Convolutions 3x3 of stride 1 by Winograd's kernel: in the layouts that oneDNN chose for its own
// primitive, with the same bias and post-ops, where the kernel is faster.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dnnl/lowering.h"
#include "kernels/byoc_winograd_plan.h"

namespace tvm_byoc_dnnl {
namespace {

using Algorithm = dnnl::algorithm;

/// What the user allows the engine to use of AVX-512 and AVX2; nothing if neither.
std::optional<byoc_isa> KernelIsa() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  auto has = [&](dnnl::cpu_isa set) {
    return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  if (has(dnnl::cpu_isa::avx512_core)) return BYOC_AVX512;
  if (has(dnnl::cpu_isa::avx2)) return BYOC_AVX2;
  return std::nullopt;
}

int64_t CacheBytes() {
  static const int64_t bytes = [] {
    const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return known > 0 ? known : 512L << 10;
  }();
  return bytes;
}

/// Channels last, or in blocks that are whole vectors; nothing for another layout.
std::optional<byoc_strides> StridesOf(const MemoryDesc& md, int64_t lanes) {
  const Dims dims = md.get_dims(), strides = md.get_strides();
  if (dims.size() != 4) return std::nullopt;
  byoc_strides result = {strides[0], strides[2], strides[3], 0, dims[1]};
  if (IsStrided(md)) {
    if (strides[1] != 1 && dims[1] != 1) return std::nullopt;
    return result;
  }
  const Dims blocks = md.get_inner_blks();
  if (blocks.size() != 1 || md.get_inner_idxs()[0] != 1) return std::nullopt;
  if (blocks[0] % lanes != 0 || dims[1] % blocks[0] != 0) return std::nullopt;
  result.lanes = blocks[0];
  result.block = strides[1];
  return result;
}

std::optional<byoc_post_op_kind> KindOf(const PostOpDesc& op) {
  switch (op.alg) {
    case Algorithm::eltwise_relu:
      return BYOC_RELU;
    case Algorithm::eltwise_clip:
      return BYOC_CLIP;
    case Algorithm::eltwise_linear:
      return BYOC_LINEAR;
    case Algorithm::eltwise_abs:
      return BYOC_ABS;
    case Algorithm::eltwise_square:
      return BYOC_SQUARE;
    case Algorithm::eltwise_hardsigmoid:
      return BYOC_HARDSIGMOID;
    case Algorithm::eltwise_hardswish:
      return BYOC_HARDSWISH;
    case Algorithm::eltwise_logistic:
      return BYOC_LOGISTIC;
    case Algorithm::eltwise_swish:
      return BYOC_SWISH;
    case Algorithm::binary_add:
      return BYOC_ADD;
    case Algorithm::binary_sub:
      return BYOC_SUB;
    case Algorithm::binary_mul:
      return BYOC_MUL;
    case Algorithm::binary_div:
      return BYOC_DIV;
    case Algorithm::binary_max:
      return BYOC_MAX;
    case Algorithm::binary_min:
      return BYOC_MIN;
    default:
      return std::nullopt;
  }
}

/// A post-op as the kernel knows it, but for the number of its operand; `md`: of the operand.
std::optional<byoc_post_op> Describe(const PostOpDesc& op, const MemoryDesc& md,
                                     const MemoryDesc& dst, int64_t lanes) {
  byoc_post_op result{};
  result.alpha = op.alpha;
  result.beta = op.beta;
  result.operand = -1;
  std::optional<byoc_post_op_kind> kind = op.kind == PostOpDesc::Kind::kSum ? BYOC_ADD : KindOf(op);
  if (!kind) return std::nullopt;
  result.kind = *kind;
  if (op.kind == PostOpDesc::Kind::kEltwise) return result;
  if (md.get_data_type() != dnnl::memory::data_type::f32) return std::nullopt;
  const Dims dims = md.get_dims(), of_dst = dst.get_dims();
  const int64_t elements = ElementCount(dims);
  if (dims == of_dst) {
    std::optional<byoc_strides> strides = StridesOf(md, lanes);
    if (!strides) return std::nullopt;
    result.form = BYOC_PER_ELEMENT;
    result.strides = *strides;
  } else if (elements == 1) {
    result.form = BYOC_PER_TENSOR;
  } else if (dims.size() == 4 && dims[1] == of_dst[1] && elements == dims[1] && IsDense(md)) {
    result.form = BYOC_PER_CHANNEL;
  } else {
    return std::nullopt;
  }
  return result;
}

bool IsOne(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d == 1; });
}

bool IsZero(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d == 0; });
}

/// Milliseconds on two threads of a Cascade Lake at 2.5 GHz, fitted to 43 convolutions for each
/// instruction set: 3 to 1,024 channels, images of 7x7 to 224x224. The choice was more than 5 %
/// slower than the better one for 3 of them (AVX-512) and 1 of them (AVX2), by 41 % at most.
struct Costs {
  double direct, winograd;
};

Costs CostsOf(const byoc_winograd_params& w) {
  struct Row {
    double direct, products;   // per 1e9 multiplications
    double vectors;            // per 1e6 vectors that are transformed
    double weights, from_ram;  // per 1e6 bytes
  };
  constexpr Row kAvx512 = {6.9, 10.6, 2.0, 0.0095, 0.027};
  constexpr Row kAvx2 = {13.5, 16.7, 2.4, 0.0157, 0.027};
  const Row& row = w.isa == BYOC_AVX512 ? kAvx512 : kAvx2;
  const double lanes = w.isa == BYOC_AVX512 ? 16 : 8;
  const auto points = static_cast<double>((w.m + 2) * (w.m + 2));
  const auto tiles = static_cast<double>(byoc_winograd_tiles(&w));
  const auto outputs = static_cast<double>(byoc_round_up(w.outputs, byoc_winograd_panel(&w)));
  const double pairs = static_cast<double>(w.channels) * outputs;
  const auto pixels = static_cast<double>(w.images * w.out_height * w.out_width);
  const double vectors = std::ceil(static_cast<double>(w.channels) / lanes) + outputs / lanes;
  const auto bytes = static_cast<double>(byoc_winograd_packed_bytes(&w));
  Costs costs;
  costs.direct = row.direct * 9 * pixels * pairs / 1e9;
  costs.winograd = row.products * points * pairs * tiles / 1e9 +
                   row.vectors * points * vectors * tiles / 1e6 +
                   (row.weights + (bytes > BYOC_MANY_WEIGHTS ? row.from_ram : 0)) * bytes / 1e6;
  return costs;
}

template <typename T>
void Append(const T& part, std::vector<int64_t>* params) {
  static_assert(sizeof(T) % sizeof(int64_t) == 0, "params are numbers of 64 bits");
  const size_t old = params->size();
  params->resize(old + sizeof(T) / sizeof(int64_t));
  std::memcpy(params->data() + old, &part, sizeof(T));
}

}  // namespace

/// The convolution of a choice by Winograd's kernel; false where it cannot or does not pay.
/// `place`: where the result is to lie, if that is decided.
bool Lowering::EmitWinograd(const Choice& choice, const std::optional<Place>& place) {
  const OpDesc& op = choice.op;
  if (op.kind != dnnl::primitive::kind::convolution) return false;
  const std::string& alg = graph_.nodes[current_node_].attrs.alg;
  if (alg == "direct") return false;
  const OpArg* weights = op.Find(DNNL_ARG_WEIGHTS);
  const OpArg* bias = op.Find(DNNL_ARG_BIAS);
  const OpArg& src = *op.Find(DNNL_ARG_SRC);
  const OpArg& dst = *op.Find(DNNL_ARG_DST);
  const Dims shape_of_weights = weights->md.get_dims();
  if (shape_of_weights.size() != 4 || shape_of_weights[2] != 3 || shape_of_weights[3] != 3 ||
      !IsOne(op.strides) || !IsZero(op.dilates) || !op.scalings.empty() ||
      !values_[weights->value].constant || values_[src.value].constant) {
    return false;
  }
  for (const OpArg& arg : op.args) {
    if (values_[arg.value].dtype != DType::kFloat32) return false;
  }
  const std::optional<byoc_isa> isa = KernelIsa();
  if (!isa) return false;

  const int64_t lanes = *isa == BYOC_AVX512 ? 16 : 8;
  const MemoryDesc src_md = QueryArg(choice.pd, DNNL_ARG_SRC);
  const MemoryDesc dst_md = QueryArg(choice.pd, DNNL_ARG_DST);
  const std::optional<byoc_strides> src_strides = StridesOf(src_md, lanes);
  const std::optional<byoc_strides> dst_strides = StridesOf(dst_md, lanes);
  if (!src_strides || !dst_strides) return false;
  std::vector<byoc_post_op> post_ops;
  std::vector<MemoryDesc> operands;
  for (size_t i = 0; i < op.post_ops.size(); ++i) {
    const bool is_sum = op.post_ops[i].kind == PostOpDesc::Kind::kSum;
    const bool is_binary = op.post_ops[i].kind == PostOpDesc::Kind::kBinary;
    operands.push_back(is_sum      ? dst_md
                       : is_binary ? QueryArg(choice.pd, PostOpArg(i))
                                   : MemoryDesc());
    std::optional<byoc_post_op> described = Describe(op.post_ops[i], operands[i], dst_md, lanes);
    if (!described) return false;
    post_ops.push_back(*described);
  }

  const Dims in = src_md.get_dims(), out = dst_md.get_dims();
  byoc_winograd_params w{};
  w.isa = *isa;
  w.m = alg == "winograd_2x2" ? 2 : 4;
  w.images = in[0];
  w.channels = in[1];
  w.height = in[2];
  w.width = in[3];
  w.outputs = out[1];
  w.out_height = out[2];
  w.out_width = out[3];
  w.pad_top = op.pad_begin[0];
  w.pad_left = op.pad_begin[1];
  w.src = *src_strides;
  w.dst = *dst_strides;
  w.has_bias = bias != nullptr;
  w.post_ops = static_cast<int64_t>(post_ops.size());
  byoc_winograd_plan(&w, omp_get_max_threads(), CacheBytes());
  const Costs costs = CostsOf(w);
  if (costs.winograd >= costs.direct) return false;

  std::vector<StepArg> args = {{DNNL_ARG_SRC, PlaceIn(src.value, src_md)},
                               {DNNL_ARG_WEIGHTS, PackForWinograd(w, weights->value)}};
  if (bias != nullptr) {
    const MemoryDesc md = Dense(values_[bias->value].shape, DType::kFloat32);
    args.push_back({DNNL_ARG_BIAS, PlaceIn(bias->value, md)});
  }
  for (size_t i = 0; i < post_ops.size(); ++i) {
    const PostOpDesc& post_op = op.post_ops[i];
    if (post_op.kind == PostOpDesc::Kind::kEltwise) continue;
    post_ops[i].operand = static_cast<int64_t>(args.size());
    Place operand;
    if (post_op.kind == PostOpDesc::Kind::kSum) {
      operand = *place;
      operand.md = dst_md;
    } else {
      operand = PlaceIn(post_op.value, operands[i]);
    }
    args.push_back({PostOpArg(i), operand});
  }
  Place result;
  if (place) {
    result = *place;
    result.md = dst_md;
    SetPlace(dst.value, result);
  } else {
    result = Allocate(dst.value, dst_md);
  }
  args.push_back({DNNL_ARG_DST, result});

  Step step;
  step.node = current_node_;
  step.impl = w.m == 4 ? "winograd_4x4" : "winograd_2x2";
  step.impl += *isa == BYOC_AVX512 ? ":avx512_core" : ":avx2";
  step.op = op;  // for reports
  step.kernel = &kWinograd;
  Append(w, &step.params);
  for (const byoc_post_op& post_op : post_ops) Append(post_op, &step.params);
  step.args = std::move(args);
  AddStep(std::move(step),
          Dense({static_cast<int64_t>(byoc_winograd_scratch_bytes(&w))}, DType::kUInt8));
  return true;
}

/// The transformed weights, made once; plans for other shapes share them.
Place Lowering::PackForWinograd(const byoc_winograd_params& w, int weights) {
  const auto bytes = static_cast<int64_t>(byoc_winograd_packed_bytes(&w));
  const MemoryDesc md = Dense({bytes / SizeOf(DType::kFloat32)}, DType::kFloat32);
  const bool of_graph = weights < static_cast<int>(graph_.tensors.size());
  const Place packed{AddBuffer(/*constant=*/true, bytes, {of_graph ? weights : -1, md}), 0, md};
  Step step;
  step.node = current_node_;
  step.impl = kWinogradPack.name;
  step.conversion = true;
  step.kernel = &kWinogradPack;
  Append(w, &step.params);
  step.args = {{DNNL_ARG_FROM, PlaceIn(weights, Dense(values_[weights].shape, DType::kFloat32))},
               {DNNL_ARG_TO, packed}};
  AddStep(std::move(step), MemoryDesc());
  return packed;
}

}  // namespace tvm_byoc_dnnl
