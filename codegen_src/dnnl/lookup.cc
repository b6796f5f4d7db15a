// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "common/support/error.h"
#include "dnnl/kinds.h"
#include "kernels/byoc_copy.h"

namespace tvm_byoc_dnnl {

static constexpr Kernel kLookup = {"lookup", "copy", byoc_lookup};

static void LowerLookup(const NodeView& n) {
  if (!IsByte(n.DTypeOf(0)) || !IsByte(n.OutDType())) {
    Fail(ErrorKind::kUnsupported, "a lookup takes no scales, no zero points and no post-ops");
  }
  std::vector<int64_t> params(1 + BYOC_LOOKUP_WORDS);
  params[0] = ElementCount(n.OutShape());
  uint8_t table[8 * BYOC_LOOKUP_WORDS];
  // A negative int8 becomes its byte.
  std::transform(n.a.table.begin(), n.a.table.end(), table,
                 [](int64_t result) { return static_cast<uint8_t>(result); });
  std::memcpy(&params[1], table, sizeof(table));
  OpArg source = n.AsIs(DNNL_ARG_SRC, 0);  // any layout of one byte after the other
  if (!IsStrided(source.md)) source = n.AsDense(DNNL_ARG_SRC, 0);
  const MemoryDesc result = Strided(n.OutShape(), n.OutDType(), source.md.get_strides());
  n.lowering.EmitKernel(kLookup, std::move(params), {source, {DNNL_ARG_DST, n.output, result}});
}

const KindRow kLookupRow = {nullptr, LowerLookup};

}  // namespace tvm_byoc_dnnl
