// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

/// A mean or maximum over all spatial axes is one pooling window, which runs on every layout of
/// activations.
bool IsGlobalPooling(const NodeView& n) {
  const Dims& in = n.Shape(0);
  const Dims& out = n.OutShape();
  return in.size() >= 3 && in.size() <= 5 && in[0] == out[0] && in[1] == out[1] &&
         std::all_of(out.begin() + 2, out.end(), [](int64_t dim) { return dim == 1; }) &&
         (n.a.alg == "mean" || n.a.alg == "max");
}

OpDesc GlobalPooling(const NodeView& n) {
  const Dims& in = n.Shape(0);
  OpDesc op;
  op.kind = dnnl::primitive::kind::pooling;
  op.alg = n.a.alg == "max" ? dnnl::algorithm::pooling_max
                            : dnnl::algorithm::pooling_avg_include_padding;
  op.kernel.assign(in.begin() + 2, in.end());
  op.strides.assign(in.size() - 2, 1);
  op.dilates = op.pad_begin = op.pad_end = Dims(in.size() - 2, 0);
  op.args = {n.AsIs(DNNL_ARG_SRC, 0), n.OutAny()};
  return op;
}

}  // namespace

std::vector<OpDesc> DescribeReduction(const NodeView& n) {
  OpDesc op;
  op.kind = dnnl::primitive::kind::reduction;
  op.alg = ToDnnl(Kind::kReduction, n.a.alg);
  op.p = static_cast<float>(n.a.p);
  op.epsilon = static_cast<float>(n.a.epsilon);

  const Dims& in = n.Shape(0);
  const Dims& out = n.OutShape();
  Dims order;  // kept axes outside, reduced axes inside
  for (bool reduced : {false, true}) {
    for (size_t i = 0; i < in.size(); ++i) {
      if ((out[i] == 1 && in[i] != 1) == reduced) order.push_back(static_cast<int64_t>(i));
    }
  }
  std::vector<OpDesc> candidates;
  auto add = [&](OpArg src, MemoryDesc dst) {
    op.args = {std::move(src), {DNNL_ARG_DST, n.output, std::move(dst)}};
    candidates.push_back(op);
  };
  const MemoryDesc any = AnyLayout(out, n.OutDType());
  if (!IsDense(n.lowering.Layout(n.In(0))) && IsGlobalPooling(n)) {
    candidates.push_back(GlobalPooling(n));
  }
  add(n.AsIs(DNNL_ARG_SRC, 0), any);
  add(n.AsDense(DNNL_ARG_SRC, 0), any);
  if (IsGlobalPooling(n)) candidates.push_back(GlobalPooling(n));
  if (!in.empty()) {
    add(n.As(Ordered(in, n.DTypeOf(0), order), DNNL_ARG_SRC, 0), Ordered(out, n.OutDType(), order));
  }
  return candidates;
}

}  // namespace tvm_byoc_dnnl
