// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

const KindRow& RowOf(Kind kind) {
  static constexpr const KindRow* kRows[] = {
#define KIND(Name, ...) &k##Name##Row,
#include "common/kind_rows.h"
#undef KIND
  };
  return *kRows[static_cast<int>(kind)];
}

}  // namespace tvm_byoc_dnnl
