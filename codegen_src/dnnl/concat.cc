// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dnnl/kinds.h"
#include "support/error.h"

namespace tvm_byoc_dnnl {
namespace {

/// The layout that most of the bytes lie in already.
const MemoryDesc& CommonLayout(const NodeView& n, const std::vector<int>& sources) {
  const Lowering& l = n.lowering;
  auto weight = [&](int candidate) {
    int64_t elements = 0;
    for (int other : sources) {
      const MemoryDesc& a = l.Layout(candidate);
      const MemoryDesc& b = l.Layout(other);
      bool alike = a.get_inner_blks() == b.get_inner_blks() && AxisOrder(a) == AxisOrder(b);
      if (alike) elements += ElementCount(l.shape(other));
    }
    return elements;
  };
  int best = sources[0];
  for (int source : sources) {
    if (weight(source) > weight(best)) best = source;
  }
  return l.Layout(best);
}

}  // namespace

void LowerConcat(const NodeView& n) {
  Lowering& l = n.lowering;
  std::vector<int> sources;
  for (int i = 0; i < n.OwnInputs(); ++i) {
    if (ElementCount(n.Shape(i)) != 0) sources.push_back(n.In(i));
  }
  const MemoryDesc common = CommonLayout(n, sources);
  auto describe = [&](bool dense) {
    OpDesc op;
    op.kind = dnnl::primitive::kind::concat;
    op.axis = n.a.axis;
    for (int source : sources) {
      const MemoryDesc& present = l.Layout(source);
      MemoryDesc md = Dense(l.shape(source), l.dtype(source));
      if (!dense) {
        if (IsCompact(present) && AxisOrder(present) == AxisOrder(common)) {
          md = present;
        } else if (IsStrided(common)) {
          md = Ordered(l.shape(source), l.dtype(source), AxisOrder(common));
        }
      }
      op.args.push_back({DNNL_ARG_MULTIPLE_SRC + static_cast<int>(op.args.size()), source, md});
    }
    op.args.push_back(n.OutAny());
    return op;
  };
  if (!l.Emit({describe(false), describe(true)}, /*accept_reference=*/true)) {
    Fail(ErrorKind::kUnsupported, "oneDNN has no implementation for it here");
  }
}

}  // namespace tvm_byoc_dnnl
