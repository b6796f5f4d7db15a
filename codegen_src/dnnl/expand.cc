// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

void ExpandTo(Lowering* lowering, int from, int to) {
  Lowering& l = *lowering;
  const Dims& in = l.shape(from);
  const Dims& out = l.shape(to);
  Place place = l.Primary(from);
  if (!IsStrided(place.md)) place = l.PlaceIn(from, Dense(in, l.dtype(from)));
  l.Allocate(to, Dense(out, l.dtype(to)));
  if (out.empty()) {
    l.Copy(from, to, l.Primary(to));
    return;
  }
  // The source repeats along an axis when its stride is 0.
  Dims strides = place.md.get_strides();
  for (size_t i = 0; i < out.size(); ++i) {
    if (in[i] != out[i]) strides[i] = 0;
  }
  place.md = Strided(out, l.dtype(from), strides);
  int repeated = l.NewValue(out, l.dtype(from), l.IsConstant(from));
  l.SetPlace(repeated, place);
  l.Copy(repeated, to, l.Primary(to));
}

int Expanded(Lowering* lowering, int value, const Dims& shape) {
  int result = lowering->NewValue(shape, lowering->dtype(value), lowering->IsConstant(value));
  ExpandTo(lowering, value, result);
  return result;
}

static void LowerExpand(const NodeView& n) { ExpandTo(&n.lowering, n.In(0), n.output); }

const KindRow kExpandRow = {nullptr, LowerExpand};

}  // namespace tvm_byoc_dnnl
