// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

static std::vector<OpDesc> DescribeLrn(const NodeView& n) {
  using Tag = dnnl::memory::format_tag;
  OpDesc op;
  op.kind = dnnl::primitive::kind::lrn;
  op.alg = ToDnnl(Kind::kLrn, n.a.alg);
  op.local_size = n.a.local_size;
  op.alpha = static_cast<float>(n.a.alpha);
  op.beta = static_cast<float>(n.a.beta);
  op.k = static_cast<float>(n.a.k);
  std::vector<OpDesc> candidates;
  auto add = [&](OpArg src) {
    op.args = {std::move(src), n.OutAny()};
    candidates.push_back(op);
  };
  const Dims& shape = n.Shape(0);
  DType dtype = n.DTypeOf(0);
  add(n.AsIs(DNNL_ARG_SRC, 0));
  add(n.As(ChannelsLast(shape, dtype), DNNL_ARG_SRC, 0));
  if (shape.size() == 4) {  // which of them has an implementation depends on the instruction set
    for (Tag tag : {Tag::nChw16c, Tag::nChw8c}) {
      add(n.As(MemoryDesc(shape, ToDnnl(dtype), tag), DNNL_ARG_SRC, 0));
    }
  }
  add(n.AsDense(DNNL_ARG_SRC, 0));
  return candidates;
}

const KindRow kLrnRow = {DescribeLrn, nullptr};

}  // namespace tvm_byoc_dnnl
