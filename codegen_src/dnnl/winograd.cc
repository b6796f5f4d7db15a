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

/// How much of the caches a plan may use, and what it costs to miss them (machines.json says which
/// number is what).
struct Caches {
  explicit Caches(const Machine& machine)
      : machine(machine), near(std::max(machine.cache_bytes, Kilobytes("block_kb"))) {}

  double Limit(const char* name) const { return machine.Limit(name); }
  int64_t Times(const char* name, int64_t bytes) const {
    return static_cast<int64_t>(Limit(name) * static_cast<double>(bytes));
  }
  int64_t Part(const char* name) const { return Times(name, near); }
  int64_t Kilobytes(const char* name) const { return static_cast<int64_t>(Limit(name)) << 10; }
  /// More weights, or more of a source, rarely stay in any cache.
  bool AreFar(int64_t bytes) const {
    return bytes > static_cast<int64_t>(machine.rates->ManyWeights());
  }

  const Machine& machine;
  /// Bytes of the cache of a core that blocks are to stay in. Beside a fast third-level cache,
  /// blocks of tiles may be larger than a small second-level one.
  const int64_t near;
};

/// Whether V of all tiles stays in the near cache while the groups of outputs read it.
bool SourceStays(const byoc_winograd_params& w, const Caches& caches) {
  return byoc_winograd_all_source_bytes(&w) <= caches.Part("stays");
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The tiles of a block whose V and M stay in the near cache. Each block reads all weights, or
/// transforms them. Where weights do not stay beside V and M, few blocks are worth more than a V
/// and M that stay; so is one block for each thread.
int64_t TilesAtOnce(const byoc_winograd_params& w, int64_t weights, const Caches& caches) {
  const int64_t tiles = byoc_winograd_tiles(&w), threads = w.of.threads;
  const int64_t outputs = byoc_round_up(w.of.outputs, byoc_panel(w.of.isa));
  const int64_t tile_bytes = byoc_winograd_points(&w) * 4 *
                             (byoc_row_floats(byoc_winograd_terms(&w)) + byoc_row_floats(outputs));
  const int64_t large = caches.Part("block_alone");
  const bool alone =
      tiles * tile_bytes <= threads * large && weights > caches.Part("weights_beside");
  const int64_t room =
      w.late != 0 ? caches.Part("block_late")
      : alone || weights > caches.Part("weights_many")
          ? large
          : std::max(caches.Part("block_beside"), caches.Kilobytes("block_beside_kb"));
  const int64_t at_once = std::max(byoc_rows(w.of.isa), room / tile_bytes);
  const int64_t blocks = std::min(byoc_round_up(CeilDiv(tiles, at_once), threads), tiles);
  return CeilDiv(tiles, blocks);
}

/// Divides the work among threads: blocks of tiles whose V and M stay in the second-level cache,
/// or, where the weights are many and the tiles few, groups of outputs behind one transformed
/// source, so that the weights are read once.
void PlanVectors(const Caches& caches, byoc_winograd_params* w) {
  const int64_t points = byoc_winograd_points(w), panel = byoc_panel(w->of.isa);
  const int64_t tiles = byoc_winograd_tiles(w), threads = w->of.threads;
  const int64_t outputs = byoc_round_up(w->of.outputs, panel);
  const int64_t weights = points * 4 * byoc_winograd_terms(w) * outputs;
  w->tiles_at_once = TilesAtOnce(*w, weights, caches);
  const int64_t blocks = CeilDiv(tiles, w->tiles_at_once);

  // As many panels for each thread, in groups of four at most.
  const int64_t panels = outputs / panel, own = CeilDiv(panels, threads);
  const int64_t of_thread = CeilDiv(own, 4);
  const int64_t groups = std::min(of_thread * threads, panels);
  w->outputs_at_once = CeilDiv(own, of_thread) * panel;
  // Bytes that come from beyond the near cache, as many times as they cost.
  const int64_t source = byoc_winograd_all_source_bytes(w);
  const int64_t product = points * 4 * tiles * byoc_row_floats(w->outputs_at_once);
  const int64_t times = SourceStays(*w, caches) ? threads : 1 + (w->late != 0 ? panels : groups);
  const int64_t moved =
      source * times + (product > caches.Part("written") ? 2 * points * 4 * tiles * outputs : 0);
  const int64_t each =
      w->late != 0 ? weights * 9 / points + caches.Times("late_points", weights) : weights;
  const int64_t by_tiles = w->late == 0 && weights <= caches.Part("stays") ? 0
                           : caches.AreFar(weights) ? caches.Times("weights_far", each * blocks)
                                                    : each * blocks;
  const int64_t by_outputs = caches.Kilobytes("wait_kb") + each +
                             caches.Times(caches.AreFar(source) ? "moved_far" : "moved", moved);
  w->over_outputs = groups >= threads && by_outputs < by_tiles;
}

/// Rows of a block, as many as its products take time on AMX: a tile of rows alone takes seven
/// tenths of the time of two.
int64_t SlowRows(int64_t tiles) {
  const int64_t rows = byoc_split_winograd_rows(tiles);
  return rows + (rows % BYOC_SPLIT_ROWS == 0 ? 0 : 12);
}

/// The time of one thread of AMX, in bytes that come from beyond its second-level cache, for which
/// it waits: products of parts, bytes of weights or of V that are only read, and of V and M that
/// are written and do not stay.
int64_t TimeOfParts(int64_t products, int64_t read, int64_t moved, const Caches& caches) {
  return static_cast<int64_t>(static_cast<double>(products) / caches.Limit("amx_products")) + read +
         caches.Times("amx_moved", moved);
}

/// The same for AMX: blocks of tiles, or groups of outputs behind one transformed source.
void PlanParts(const Caches& caches, byoc_winograd_params* w) {
  constexpr int64_t kBytes = BYOC_POINT_PARTS * 2, kMostPanels = 4;
  const int64_t tiles = byoc_winograd_tiles(w), panels = byoc_split_winograd_panels(w);
  const int64_t threads = w->of.threads, near = caches.near;
  const auto weights = static_cast<int64_t>(byoc_split_winograd_packed_bytes(w));
  const int64_t of_row = weights / kBytes * BYOC_POINT_PRODUCTS;
  int64_t least = -1;
  for (int64_t most = BYOC_TILE_ROWS;; most += BYOC_TILE_ROWS) {
    const int64_t blocks = byoc_round_up(CeilDiv(tiles, most), threads);
    const int64_t at_once = CeilDiv(tiles, blocks), own = blocks / threads;
    const int64_t used = byoc_split_winograd_block_floats(w, at_once) * 4;
    const double times = used + weights <= near ? caches.Limit("amx_nearer") : 1;
    const auto read = static_cast<int64_t>(static_cast<double>(weights * own) / times);
    const int64_t time = TimeOfParts(own * SlowRows(at_once) * of_row, read,
                                     own * std::max<int64_t>(used - near, 0), caches);
    if (least < 0 || time < least) {
      least = time;
      w->tiles_at_once = at_once;
    }
    if (most * threads >= tiles) break;
  }
  const int64_t own = CeilDiv(panels, threads), group = std::min(own, kMostPanels);
  const int64_t groups = CeilDiv(own, group);
  const int64_t source = BYOC_POINTS * byoc_split_winograd_source(w, tiles) * 4;
  w->outputs_at_once = group * BYOC_SPLIT_PANEL;
  const int64_t beyond = std::max<int64_t>(byoc_split_winograd_group_floats(w) * 4 - near, 0);
  const int64_t time =
      TimeOfParts(SlowRows(tiles) * of_row / panels * own, weights / panels * own + source * groups,
                  source + groups * beyond, caches);
  w->over_outputs = panels >= threads && threads > 1 && time < least;
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
  if (w.over_outputs != 0 && !SourceStays(w, Caches(machine)))
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
  void (*plan)(const Caches&, byoc_winograd_params*);
  size_t (*scratch_bytes)(const byoc_winograd_params*);
  size_t (*packed_bytes)(const byoc_winograd_params*);
  Work (*work)(const byoc_winograd_params&, const Machine& machine);
};
const TileKernel kVectors = {kWinograd,
                             kWinogradPack,
                             nullptr,
                             true,
                             PlanVectors,
                             byoc_winograd_scratch_bytes,
                             byoc_winograd_packed_bytes,
                             WorkOf};
const TileKernel kParts = {kSplitWinograd,
                           kSplitWinogradPack,
                           "avx512_core_amx",
                           false,
                           PlanParts,
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
  form.of.plan(Caches(values.machine()), &w);
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
