// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static void LowerSlice(const NodeView& n) {
  Lowering& l = n.lowering;
  Place place = l.Primary(n.In(0));
  if (!n.OutShape().empty()) {
    std::optional<View> view = SliceView(place.md, n.a.begin, n.OutShape(), n.a.steps);
    if (!view) {
      place = l.PlaceIn(n.In(0), Dense(n.Shape(0), n.DTypeOf(0)));
      view = SliceView(place.md, n.a.begin, n.OutShape(), n.a.steps);
    }
    place.md = view->md;
    place.offset += view->offset;
  }
  l.SetPlace(n.output, place);
}

const KindRow kSliceRow = {nullptr, LowerSlice};

}  // namespace tvm_byoc_dnnl
