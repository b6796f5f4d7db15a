// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

using dnnl::algorithm;

/// a op b == b Mirror(op) a; undef if there is no such operation.
algorithm Mirror(algorithm alg) {
  switch (alg) {
    case algorithm::binary_add:
    case algorithm::binary_mul:
    case algorithm::binary_max:
    case algorithm::binary_min:
    case algorithm::binary_eq:
    case algorithm::binary_ne:
      return alg;
    case algorithm::binary_ge:
      return algorithm::binary_le;
    case algorithm::binary_gt:
      return algorithm::binary_lt;
    case algorithm::binary_le:
      return algorithm::binary_ge;
    case algorithm::binary_lt:
      return algorithm::binary_gt;
    default:
      return algorithm::undef;
  }
}

}  // namespace

std::vector<OpDesc> DescribeBinary(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::binary;
  op.alg = ToDnnl(Kind::kBinary, n.a.alg);
  int first = n.In(0), second = n.In(1);
  // The implementations broadcast the second operand only.
  if (n.lowering.shape(first) != n.OutShape()) {
    if (n.lowering.shape(second) == n.OutShape() && Mirror(op.alg) != algorithm::undef) {
      op.alg = Mirror(op.alg);
      std::swap(first, second);
    } else {
      first = Expanded(n, first);
    }
  } else if (n.lowering.shape(second) == n.OutShape() && Mirror(op.alg) != algorithm::undef &&
             !IsDense(n.lowering.Layout(second)) && IsDense(n.lowering.Layout(first))) {
    // Rather bring a plain operand into the other's layout than a layout back to plain.
    op.alg = Mirror(op.alg);
    std::swap(first, second);
  }
  const Lowering& l = n.lowering;
  auto describe = [&](const MemoryDesc& layout) {
    bool full = l.shape(second) == n.OutShape() && l.dtype(second) == l.dtype(first);
    op.args = {{DNNL_ARG_SRC_0, first, layout},
               {DNNL_ARG_SRC_1, second, full ? layout : Dense(l.shape(second), l.dtype(second))},
               n.OutAny()};
    return op;
  };
  const MemoryDesc dense = Dense(l.shape(first), l.dtype(first));
  const MemoryDesc& present = l.Layout(first);
  return {describe(IsCompact(present) ? present : dense), describe(dense)};
}

}  // namespace tvm_byoc_dnnl
