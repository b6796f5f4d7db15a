// SPDX-License-Identifier: Apache-2.0
#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

void LowerGather(const NodeView&) { Fail(ErrorKind::kUnsupported, "oneDNN has no gather"); }

}  // namespace tvm_byoc_dnnl
