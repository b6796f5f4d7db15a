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

Node NewNode(Kind kind, std::vector<int> inputs, int output) {
  Node node;
  node.kind = kind;
  node.own_inputs = static_cast<int>(inputs.size());
  node.inputs = std::move(inputs);
  node.scalings.resize(node.inputs.size());
  node.output = output;
  return node;
}

}  // namespace tvm_byoc_dnnl
