// SPDX-License-Identifier: Apache-2.0
// Convolutions 3x3 and 5x5 by Winograd's kernel: with the bias and post-ops of oneDNN's own
// primitive, and into the layout that it chose, but from the layout that the source has.
#include <algorithm>
#include <cmath>

#include "common/support/error.h"
#include "dnnl/kernel_call.h"
#include "dnnl/lowering.h"
#include "kernels/byoc_winograd.h"
#if BYOC_HAS_AMX
#include "kernels/byoc_split_winograd.h"
#endif

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kWinograd = {"winograd", "winograd", byoc_winograd};
constexpr Kernel kWinogradPack = {"winograd_pack", "winograd", byoc_winograd_pack, true};
constexpr Kernel kSplitWinograd = {"split_winograd", "split_winograd",
                                   BYOC_IF_AMX(byoc_split_winograd)};
constexpr Kernel kSplitWinogradPack = {"split_winograd_pack", "split_winograd",
                                       BYOC_IF_AMX(byoc_split_winograd_pack)};

/// The caches for which calls are planned. Beside a fast third-level cache, blocks of tiles may be
/// larger than a small second-level one.
byoc_caches CachesOf(const Machine& machine) {
  const auto limit = [&](const char* name) { return machine.Limit(name); };
  const auto kilobytes = [&](const char* name) {
    return static_cast<int64_t>(machine.Limit(name)) << 10;
  };
  byoc_caches c{};
  c.near_bytes = std::max(machine.cache_bytes, kilobytes("block_kb"));
  const auto part = [&](const char* name) {
    return static_cast<int64_t>(machine.Limit(name) * static_cast<double>(c.near_bytes));
  };
  c.last_bytes = static_cast<int64_t>(machine.rates->ManyWeights());
  c.wait_bytes = kilobytes("wait_kb");
  c.large_block = part("block_alone");
  c.small_block = std::max(part("block_beside"), kilobytes("block_beside_kb"));
  c.late_block = part("block_late");
  c.few_weights = part("weights_beside");
  c.many_weights = part("weights_many");
  c.stays = part("stays");
  c.written = part("written");
  c.moved = limit("moved");
  c.moved_far = limit("moved_far");
  c.weights_far = limit("weights_far");
  c.late = limit("late_points");
  c.products = limit("amx_products");
  c.moved_beside = limit("amx_moved");
  c.nearer = limit("amx_nearer");
  return c;
}

Work WorkOf(const byoc_winograd_params& w, const Machine& machine) {
  const auto points = static_cast<double>(byoc_winograd_points(&w));
  const auto tiles = static_cast<double>(w.of.groups * byoc_winograd_tiles(&w));
  const auto terms = static_cast<double>(byoc_winograd_terms(&w));
  const auto outputs = static_cast<double>(byoc_round_up(w.of.outputs, byoc_panel(w.of.isa)));
  const auto lanes = static_cast<double>(byoc_lanes(w.of.isa));
  Work work;
  work.products = points * terms * outputs * tiles;
  work.vectors = points * (std::ceil(terms / lanes) + outputs / lanes) * tiles;
  if (w.late == 0) return work;
  // What is measured, as vectors that take as long: a call transforms the weights once, or for each
  // block of tiles, and reads a source that stays in no cache once for each panel of outputs.
  const auto groups = static_cast<double>(w.of.groups);
  const double blocks = std::ceil(tiles / groups / static_cast<double>(w.tiles_at_once));
  const double vectors = points * terms / lanes;
  work.vectors += machine.Limit("late_weights") * vectors * lanes * outputs * groups *
                  (w.over_outputs != 0 ? 1 : blocks);
  const byoc_caches caches = CachesOf(machine);
  if (w.over_outputs != 0 && byoc_winograd_source_stays(&w, &caches) == 0)
    work.vectors += machine.Limit("late_source") * vectors * tiles * outputs /
                    static_cast<double>(byoc_panel(w.of.isa));
  return work;
}

/// The same with products by parts of bfloat16 on AMX.
Work WorkOfParts(const byoc_winograd_params& w, const Machine& machine) {
  const byoc_split_params p = byoc_split_winograd_product(&w);
  const int64_t tiles = byoc_winograd_tiles(&w);
  const int64_t rows = w.over_outputs ? byoc_split_winograd_rows(tiles)
                                      : byoc_split_winograd_rows(w.tiles_at_once) *
                                            ((tiles + w.tiles_at_once - 1) / w.tiles_at_once);
  Work work = WorkOf(w, machine);
  work.products = static_cast<double>(BYOC_POINT_PRODUCTS * BYOC_POINTS * rows * p.filled *
                                      byoc_round_up(w.of.outputs, BYOC_TILE_ROWS));
  return work;
}

/// A kernel that convolves by tiles, with the functions that plan it.
struct TileKernel {
  const Kernel& kernel;
  const Kernel& pack;
  const char* isa;  // nullptr: that of its vectors
  bool takes_groups;
  void (*plan)(byoc_winograd_params*, int threads, const byoc_caches*);
  size_t (*scratch_bytes)(const byoc_winograd_params*);
  size_t (*packed_bytes)(const byoc_winograd_params*);
  Work (*work)(const byoc_winograd_params&, const Machine& machine);
};
const TileKernel kVectors = {kWinograd,
                             kWinogradPack,
                             nullptr,
                             true,
                             byoc_winograd_plan,
                             byoc_winograd_scratch_bytes,
                             byoc_winograd_packed_bytes,
                             WorkOf};
const TileKernel kParts = {kSplitWinograd,
                           kSplitWinogradPack,
                           "avx512_core_amx",
                           false,
                           byoc_split_winograd_plan,
                           byoc_split_winograd_scratch_bytes,
                           byoc_split_winograd_packed_bytes,
                           WorkOfParts};

/// A way to use it: m results of a tile and axis, for square kernels of this size and stride;
/// whether each call transforms the weights. That is a quarter of their bytes, which pays where
/// they come from memory and tiles are few. Of small tiles there are more products, but fewer
/// weights, and less lies beyond the edge of an image. With two parts of a number, errors would
/// grow in the transformations, so there are always three.
struct Form {
  const char* name;
  const TileKernel& of;
  int64_t m, kernel, stride, late;
};
const Form kForms[] = {
    {"winograd_4x4", kVectors, 4, 3, 1, 0},      {"winograd_2x2_5x5", kVectors, 2, 5, 1, 0},
    {"winograd_4x4_5x5", kVectors, 4, 5, 2, 0},  {"winograd_2x2", kVectors, 2, 3, 1, 0},
    {"winograd_4x4_late", kVectors, 4, 3, 1, 1}, {"winograd_4x4_bf16x3", kParts, 4, 3, 1, 0}};

/// Whether the user wants it, and it may be the fastest: where AMX multiplies, small tiles are not.
bool IsAsked(const Form& form, const std::string& preferred, bool has_tiles) {
  const bool is_small = form.m == 2 && form.kernel == 3;
  if (preferred == "winograd_2x2") return is_small;
  if (&form.of == &kParts) return has_tiles && preferred != "float32";
  return !is_small || !has_tiles;
}

/// Whether the convolution has this kernel and stride.
bool Suits(const OpDesc& op, const Form& form) {
  if (op.kind != dnnl::primitive::kind::convolution || op.preferred == "direct") return false;
  const Dims shape = op.Find(DNNL_ARG_WEIGHTS)->md.get_dims();
  const size_t axes = op.Find(DNNL_ARG_DST)->md.get_dims().size();
  return axes == 4 && AllAre(form.kernel, Dims(shape.end() - 2, shape.end())) &&
         AllAre(form.stride, op.strides) && AllAre(0, op.dilates);
}

/// Whether each group, and each phase of it, begins with a whole vector where the layout or the
/// kernel needs that; thin groups belong to the direct kernel.
bool HasWholeVectors(const byoc_winograd_params& w) {
  const int64_t lanes = byoc_lanes(w.of.isa);
  if (w.of.stride_x > 1 && w.of.channels % lanes != 0) return false;
  if (w.of.groups == 1) return true;
  const bool blocked =
      w.of.src.lanes != w.of.groups * w.of.channels || w.of.dst.lanes != w.of.groups * w.of.outputs;
  return blocked ? w.of.channels % lanes == 0 && w.of.outputs % lanes == 0
                 : w.of.channels >= lanes && w.of.outputs >= lanes;
}

std::optional<Candidate> OfferTiles(const Candidate& primitive, const Lowering& values,
                                    const Form& form) {
  const OpDesc& op = primitive.op;
  if (!Suits(op, form)) return std::nullopt;
  std::optional<KernelFrame> frame = FrameOf(primitive, values, Reads::kAsPresent);
  if (!frame) return std::nullopt;

  byoc_winograd_params w{};
  w.of = frame->of;
  w.m = form.m;
  w.late = form.late;
  if (!HasWholeVectors(w) || (w.of.groups > 1 && !form.of.takes_groups)) return std::nullopt;
  const byoc_caches caches = CachesOf(values.machine());
  form.of.plan(&w, values.machine().threads, &caches);
  KernelCall call = CallOf(form.of.kernel, form.of.pack, w, *frame, form.of.scratch_bytes(&w),
                           form.of.packed_bytes(&w));
  const std::string impl =
      form.of.isa == nullptr ? KernelImpl(form.name, w.of.isa) : Cat(form.name, ":", form.of.isa);
  return Candidate{op, {}, impl, std::move(call), form.of.work(w, values.machine())};
}

}  // namespace

std::vector<Candidate> OfferWinograd(const Candidate& primitive, const Lowering& values) {
  std::vector<Candidate> offered;
  for (const Form& form : kForms) {
    if (!IsAsked(form, primitive.op.preferred, values.isa().HasTiles())) continue;
    if (auto candidate = OfferTiles(primitive, values, form))
      offered.push_back(std::move(*candidate));
  }
  return offered;
}

}  // namespace tvm_byoc_dnnl
