// SPDX-License-Identifier: Apache-2.0
#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

void LowerEmpty(const NodeView& n) {
  const bool sum =
      n.node.kind == Kind::kMatmul || (n.node.kind == Kind::kReduction && n.a.alg == "sum");
  if (!sum) Fail(ErrorKind::kUnsupported, "a source without elements has no result");
  Lowering& l = n.lowering;
  if (n.node.kind == Kind::kMatmul && n.OwnInputs() == 3) return ExpandTo(&l, n.In(2), n.output);
  l.Allocate(n.output, Dense(n.OutShape(), n.OutDType()));
  l.Fill(n.output, std::string(static_cast<size_t>(SizeOf(n.OutDType())), '\0'));
}

}  // namespace tvm_byoc_dnnl
