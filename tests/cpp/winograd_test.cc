// SPDX-License-Identifier: Apache-2.0
// Winograd's convolution against a direct one in float64: every tail of every dimension, both sizes
// of tiles, kernels of 3x3 and 5x5, strides, groups, both ways to divide the work, each instruction
// set that this CPU has, and products by parts of bfloat16 where it has AMX. An unreadable page
// lies behind every buffer.
#include <cstdint>
#include <string>
#include <vector>

#include "convolution_check.h"
#include "kernels/byoc_winograd.h"
#if BYOC_HAS_AMX
#include "kernels/byoc_split_winograd.h"
#endif

namespace {

/// A kernel, and what belongs to it.
struct Form {
  decltype(&byoc_winograd_packed_bytes) packed_bytes;
  decltype(&byoc_winograd_scratch_bytes) scratch_bytes;
  byoc_kernel pack, run;
};
constexpr Form kFloat32 = {byoc_winograd_packed_bytes, byoc_winograd_scratch_bytes,
                           byoc_winograd_pack, byoc_winograd};
#if BYOC_HAS_AMX
constexpr Form kParts = {byoc_split_winograd_packed_bytes, byoc_split_winograd_scratch_bytes,
                         byoc_split_winograd_pack, byoc_split_winograd};
#endif

/// A way to compute a convolution of square kernels; m: results of a tile and axis.
struct Way {
  const Form* form;
  byoc_isa isa;
  int m;
  const char* name;
  bool late = false;  // each call transforms the weights
  int64_t kernel = 3, stride = 1;
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (byoc_isa isa : InstructionSets()) {
    const char* name = isa == BYOC_AVX2 ? "avx2" : "avx512";
    for (int m : {4, 2}) ways.push_back({&kFloat32, isa, m, name});
    ways.push_back({&kFloat32, isa, 4, name, true});
    ways.push_back({&kFloat32, isa, 2, name, false, 5});
    ways.push_back({&kFloat32, isa, 4, name, false, 5, 2});
  }
#if BYOC_HAS_AMX
  if (HasTiles()) ways.push_back({&kParts, BYOC_AVX512, 4, "parts on AMX"});
#endif
  return ways;
}

struct Case : Convolution {
  int64_t tiles_at_once = 200, panels_at_once = 4;

  Case() {
    height = width = 4;
    top = bottom = left = right = 1;
    lanes = 0;  // channels last
  }
};

/// The convolution as one way computes it.
Case For(Case c, const Way& way) {
  c.kernel_height = c.kernel_width = way.kernel;
  c.stride_y = c.stride_x = way.stride;
  if (c.lanes != 0) c.src = c.dst = Layout::kBlocks;
  return c;
}

Outcome Run(const Case& c, const Way& way, bool over_outputs) {
  Params<byoc_winograd_params> w(c, way.isa);
  w->m = way.m;
  w->late = way.late;
  w->tiles_at_once = std::min(c.tiles_at_once, byoc_winograd_tiles(&*w));
  w->outputs_at_once = c.panels_at_once * byoc_panel(way.isa);
  w->over_outputs = over_outputs;
  return Convolve(
      c, &w,
      {way.form->pack, way.form->run, way.form->packed_bytes(&*w), way.form->scratch_bytes(&*w)});
}

// Six points lose about three bits, four points less than one: 2e-6 and 5e-7 were seen for 64
// channels.
double Tolerance(const Way& way) { return way.m == 2 && way.kernel == 3 ? 2e-6 : 1e-5; }

/// Whether the kernel takes such a case. A vector of AVX-512 is wider than a block of eight; phases
/// are whole vectors of channels, and so are groups in blocks. Products by parts have no groups.
bool Takes(const Way& way, const Case& c) {
  const int64_t lanes = byoc_lanes(way.isa);
  if (c.lanes != 0 && (c.lanes % lanes != 0 || (c.groups > 1 && c.channels % lanes != 0))) {
    return false;
  }
  return c.height + c.top + c.bottom >= way.kernel && c.width + c.left + c.right >= way.kernel &&
         (way.stride == 1 || c.channels % lanes == 0) && (c.groups == 1 || way.form == &kFloat32);
}

void Check(const Case& c) {
  for (const Way& way : Ways()) {
    if (!Takes(way, c)) continue;
    for (bool over_outputs : {false, true}) {
      const Case of_way = For(c, way);
      CheckError(__FILE__, __LINE__, of_way,
                 std::string(way.name) + (way.late ? ", late" : "") + ", m " +
                     std::to_string(way.m) + ", over outputs " + std::to_string(over_outputs),
                 Run(of_way, way, over_outputs).error, Tolerance(way));
    }
  }
}

TEST(channels_and_outputs) {
  for (int64_t channels : {1, 3, 7, 8, 9, 16, 17, 33}) {
    for (int64_t outputs : {1, 5, 8, 15, 16, 17, 32, 33, 65}) {
      Case c;
      c.channels = channels;
      c.outputs = outputs;
      c.across = outputs % 2 == 1;
      c.height = 6;
      c.width = 5;
      Check(c);
    }
  }
}

TEST(more_channels_than_are_transformed_at_once) {
  for (int64_t channels : {63, 64, 65, 127, 128, 129, 257}) {
    Case c;
    c.channels = channels;
    c.outputs = 35;
    c.height = 9;
    c.width = 6;
    Check(c);
  }
}

TEST(sizes_of_images) {
  for (int64_t height = 1; height <= 10; ++height) {
    for (int64_t width = 1; width <= 10; ++width) {
      Case c;
      c.channels = 5;
      c.outputs = 3;
      c.height = height;
      c.width = width;
      Check(c);
    }
  }
}

TEST(pads) {
  for (int64_t channels : {3, 16}) {
    for (int pads = 0; pads < 81; ++pads) {
      Case c;
      c.channels = channels;
      c.outputs = 2;
      c.height = 5;
      c.width = 6;
      c.top = pads % 3;
      c.bottom = pads / 3 % 3;
      c.left = pads / 9 % 3;
      c.right = pads / 27;
      Check(c);
    }
  }
}

TEST(phases_of_strided_images) {
  for (int64_t height = 4; height <= 13; ++height) {
    for (int64_t width : {4, 7, 12}) {
      for (int64_t outputs : {1, 19}) {
        Case c;
        c.channels = 16;
        c.outputs = outputs;
        c.height = height;
        c.width = width;
        c.bottom = 2;
        Check(c);
      }
    }
  }
}

TEST(groups) {
  for (int64_t groups : {2, 3}) {
    for (int64_t channels : {9, 16, 32}) {
      for (int64_t outputs : {8, 17, 32}) {
        for (int64_t lanes : {0, 8, 16}) {
          for (int threads : {1, 2}) {
            Case c;
            c.groups = groups;
            c.channels = channels;
            c.outputs = outputs;
            c.lanes = lanes;
            c.height = 9;
            c.width = 7;
            c.threads = threads;
            const bool whole = lanes == 0 || (channels % lanes == 0 && outputs % lanes == 0);
            if (whole) Check(c);
          }
        }
      }
    }
  }
  for (const auto& chain : PostOpChains()) {
    Case c;
    c.groups = 2;
    c.channels = 4;
    c.outputs = 13;
    c.height = 7;
    c.width = 6;
    c.post_ops = chain;
    Check(c);
  }
}

TEST(blocks_of_channels) {
  for (int64_t lanes : {8, 16}) {
    for (int64_t channels : {16, 48}) {
      for (int64_t outputs : {16, 80}) {
        if (lanes == 8 && channels == 48) continue;
        Case c;
        c.lanes = lanes;
        c.channels = channels;
        c.outputs = outputs;
        c.height = 9;
        c.width = 7;
        c.images = 2;
        Check(c);
      }
    }
  }
}

TEST(batches_threads_gaps_and_blocks) {
  for (int threads : {1, 2, 3, 7}) {
    for (int64_t images : {1, 3}) {
      for (int64_t gap : {0, 5}) {
        for (int64_t at_once : {1, 50}) {
          for (int64_t channels : {20, 32}) {
            Case c;
            c.images = images;
            c.threads = threads;
            c.gap = gap;
            c.tiles_at_once = 3 * at_once;
            c.panels_at_once = at_once == 1 ? 1 : 3;
            c.channels = channels;
            c.outputs = 70;
            c.height = 13;
            c.width = 11;
            Check(c);
          }
        }
      }
    }
  }
}

TEST(many_tiles_and_channels) {
  Case c;
  c.channels = 130;
  c.outputs = 96;
  c.height = 22;
  c.width = 19;
  c.threads = 2;
  Check(c);
}

TEST(post_operations) {
  for (const auto& chain : PostOpChains()) {
    for (bool bias : {false, true}) {
      Case c;
      c.channels = 6;
      c.outputs = 21;
      c.height = 7;
      c.width = 6;
      c.bias = bias;
      c.post_ops = chain;
      Check(c);
    }
  }
}

TEST(a_nan_stays) {
  for (const Way& way : Ways()) {
    Case c = For({}, way);
    c.channels = 16;
    c.top = c.bottom = c.left = c.right = way.kernel / 2;
    c.bias = false;
    CheckThatNanStays(c,
                      {BYOC_RELU, BYOC_CLIP, BYOC_HARDSIGMOID, BYOC_HARDSWISH, BYOC_LOGISTIC,
                       BYOC_SWISH, BYOC_ABS},
                      [&](const Convolution& of) {
                        Case own;
                        static_cast<Convolution&>(own) = of;
                        return Run(own, way, false);
                      });
  }
}

}  // namespace
