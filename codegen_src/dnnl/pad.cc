// SPDX-License-Identifier: Apache-2.0
#include "dnnl/encode.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static void LowerPad(const NodeView& n) {
  Lowering& l = n.lowering;
  const MemoryDesc& source = l.Layout(n.In(0));  // whose order of axes the result keeps
  Place whole = l.Allocate(n.output, IsStrided(source) && !n.OutShape().empty()
                                         ? Ordered(n.OutShape(), n.OutDType(), AxisOrder(source))
                                         : Dense(n.OutShape(), n.OutDType()));
  if (n.Shape(0) != n.OutShape())
    l.Fill(n.output, EncodeElement(n.a.value, n.OutDType(), l.engine()));
  if (ElementCount(n.Shape(0)) == 0) return;
  Place inside = whole;
  if (!n.OutShape().empty()) {
    Dims steps(n.OutShape().size(), 1);
    View view = *SliceView(whole.md, n.a.pad_begin, n.Shape(0), steps);
    inside.md = view.md;
    inside.offset += view.offset;
  }
  l.Copy(n.In(0), n.output, inside);
}

const KindRow kPadRow = {nullptr, LowerPad};

}  // namespace tvm_byoc_dnnl
