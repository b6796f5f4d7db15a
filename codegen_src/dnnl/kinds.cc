// SPDX-License-Identifier: Apache-2.0
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {

const KindRow& RowOf(Kind kind) {
  static constexpr const KindRow* kRows[] = {
#define TVM_BYOC_KIND(Name, ...) &k##Name##Row,
      TVM_BYOC_KINDS(TVM_BYOC_KIND)
#undef TVM_BYOC_KIND
  };
  return *kRows[static_cast<int>(kind)];
}

}  // namespace tvm_byoc_dnnl
