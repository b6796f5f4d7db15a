// SPDX-License-Identifier: Apache-2.0
#include "common/graph_tables.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {
namespace {

constexpr Kernel kGather = {"gather", "copy", byoc_gather};

int64_t ModeOf(const std::string& alg) {
  if (alg == "from_end") return BYOC_GATHER_FROM_END;
  if (alg == "clip") return BYOC_GATHER_CLIP;
  return alg == "wrap" ? BYOC_GATHER_WRAP : BYOC_GATHER_CHECKED;
}

}  // namespace

static void LowerGather(const NodeView& n) {
  const Dims& shape = n.Shape(0);
  const auto axis = shape.begin() + n.a.axis;
  const int64_t slice = ElementCount(Dims(axis + 1, shape.end())) * SizeOf(n.OutDType());
  const int64_t width = SizeOf(n.DTypeOf(1));
  n.lowering.EmitKernel(kGather,
                        {ModeOf(n.a.alg), ElementCount(Dims(shape.begin(), axis)), *axis, slice,
                         ElementCount(n.Shape(1)), width},
                        {n.AsDense(DNNL_ARG_SRC, 0),
                         {DNNL_ARG_SRC_1, n.In(1), RawLayout(n.Shape(1), n.DTypeOf(1))},
                         {DNNL_ARG_DST, n.output, Dense(n.OutShape(), n.OutDType())}});
}

const KindRow kGatherRow = {nullptr, LowerGather};

}  // namespace tvm_byoc_dnnl
