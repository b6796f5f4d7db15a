// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

void LowerReshape(const NodeView& n) {
  Lowering& l = n.lowering;
  Place place = l.Primary(n.In(0));
  std::optional<MemoryDesc> view = ReshapeView(place.md, n.OutShape());
  if (!view) {
    place = l.PlaceIn(n.In(0), Dense(n.Shape(0), n.DTypeOf(0)));
    view = ReshapeView(place.md, n.OutShape());
  }
  place.md = *view;
  l.SetPlace(n.output, place);
}

}  // namespace tvm_byoc_dnnl
