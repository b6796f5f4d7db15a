// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static void LowerPermute(const NodeView& n) {
  Place place = n.lowering.Primary(n.In(0));
  place.md = PermuteView(place.md, n.a.axes);
  n.lowering.SetPlace(n.output, place);
}

const KindRow kPermuteRow = {nullptr, LowerPermute};

}  // namespace tvm_byoc_dnnl
