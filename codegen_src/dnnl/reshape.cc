// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

/// A layout of `md`'s tensor of which the reshaped tensor is a view, and in which as little as
/// possible moves: axes that merge or split together stand together, row-major; the groups keep
/// their physical order. Channels that were innermost stay so.
MemoryDesc Reshapable(const MemoryDesc& md, DType dtype, const Dims& to) {
  const Dims from = md.get_dims();
  const Dims strides = md.get_strides();
  struct Group {
    int64_t stride;  // of its innermost axis
    Dims axes;
  };
  std::vector<Group> groups;
  size_t i = 0, o = 0;
  while (i <
         from.size()) {  // the shortest runs of axes with the same number of elements on both sides
    Group group{strides[i], {static_cast<int64_t>(i)}};
    int64_t in = from[i++];
    int64_t out = o < to.size() ? to[o++] : 1;
    while (in != out) {
      if (in < out) {
        if (from[i] != 1) group.stride = std::min(group.stride, strides[i]);
        group.axes.push_back(static_cast<int64_t>(i));
        in *= from[i++];
      } else {
        out *= to[o++];
      }
    }
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.stride > b.stride; });
  Dims order;
  for (const Group& group : groups) order.insert(order.end(), group.axes.begin(), group.axes.end());
  return Ordered(from, dtype, order);
}

}  // namespace

static void LowerReshape(const NodeView& n) {
  Lowering& l = n.lowering;
  const DType dtype = n.OutDType();
  Place place = l.Primary(n.In(0));
  std::optional<MemoryDesc> view = ReshapeView(place.md, n.OutShape());
  if (!view && IsStrided(place.md)) {
    place = l.PlaceIn(n.In(0), Reshapable(place.md, dtype, AtLeastRank1(n.OutShape())));
    view = ReshapeView(place.md, n.OutShape());
  }
  if (!view) {
    place = l.PlaceIn(n.In(0), Dense(n.Shape(0), dtype));
    view = ReshapeView(place.md, n.OutShape());
  }
  place.md = *view;
  l.SetPlace(n.output, place);
}

const KindRow kReshapeRow = {nullptr, LowerReshape};

}  // namespace tvm_byoc_dnnl
