// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "common/support/error.h"
#include "dnnl/kinds.h"

namespace tvm_byoc_dnnl {
namespace {

using dnnl::algorithm;

/// Whether the operands may change places, NaN included: oneDNN's max and min answer with the
/// second operand when one of them is NaN.
bool Commutes(algorithm alg) {
  return alg == algorithm::binary_add || alg == algorithm::binary_mul ||
         alg == algorithm::binary_eq || alg == algorithm::binary_ne;
}

/// a > b as b < a: oneDNN's gt and ge are true for NaN, its lt and le are false.
void AskLess(algorithm* alg, int* first, int* second) {
  if (*alg != algorithm::binary_gt && *alg != algorithm::binary_ge) return;
  *alg = *alg == algorithm::binary_gt ? algorithm::binary_lt : algorithm::binary_le;
  std::swap(*first, *second);
}

/// Puts the operand that is not of the output's shape second, the only one that implementations
/// broadcast.
void Arrange(Lowering& l, algorithm* alg, int* first, int* second, const Dims& out) {
  AskLess(alg, first, second);
  const bool may_swap = Commutes(*alg) && l.shape(*second) == out;
  // Rather bring a plain operand into the other's layout than a layout back to plain.
  if (may_swap &&
      (l.shape(*first) != out || (IsDense(l.Layout(*first)) && !IsDense(l.Layout(*second))))) {
    std::swap(*first, *second);
  } else if (l.shape(*first) != out) {
    *first = Expanded(l, *first, out);
  }
}

OpDesc Describe(const Lowering& l, const Operation& operation, int first, int second, int result,
                const MemoryDesc& layout) {
  bool alike = l.shape(second) == l.shape(first) && l.dtype(second) == l.dtype(first);
  OpDesc op;
  op.kind = dnnl::primitive::kind::binary;
  op.operation() = operation;
  op.args = {{DNNL_ARG_SRC_0, first, layout},
             {DNNL_ARG_SRC_1, second, alike ? layout : Dense(l.shape(second), l.dtype(second))},
             {DNNL_ARG_DST, result, AnyLayout(l.shape(result), l.dtype(result))}};
  return op;
}

/// Neighbouring axes that are both broadcast or both not become one; a lone [A, B] with [A, 1]
/// becomes [1, A, B], which is a broadcast "per channel".
void Collapse(const Dims& out, const Dims& operand, Dims* flat_out, Dims* flat_operand) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == 1) continue;
    bool broadcast = operand[i] == 1;
    if (flat_out->empty() || (flat_operand->back() == 1) != broadcast) {
      flat_out->push_back(out[i]);
      flat_operand->push_back(operand[i]);
    } else {
      flat_out->back() *= out[i];
      flat_operand->back() *= operand[i];
    }
  }
  if (flat_out->size() == 2 && flat_operand->back() == 1) {
    flat_out->insert(flat_out->begin(), 1);
    flat_operand->insert(flat_operand->begin(), 1);
  }
}

}  // namespace

static std::vector<OpDesc> DescribeBinary(const NodeView& n) {
  Lowering& l = n.lowering;
  Operation operation = OperationOf(Kind::kBinary, n.a.alg);
  int first = n.In(0), second = n.In(1);
  Arrange(l, &operation.alg, &first, &second, n.OutShape());
  const MemoryDesc& present = l.Layout(first);
  const MemoryDesc dense = Dense(l.shape(first), l.dtype(first));
  return {Describe(l, operation, first, second, n.output, IsCompact(present) ? present : dense),
          Describe(l, operation, first, second, n.output, dense)};
}

static void LowerBinary(const NodeView& n) {
  LowerBinary(n.lowering, OperationOf(Kind::kBinary, n.a.alg), n.In(0), n.In(1), n.output);
}

void LowerBinary(Lowering& l, Operation operation, int first, int second, int result) {
  const Dims out = l.shape(result);
  Arrange(l, &operation.alg, &first, &second, out);
  Dims flat, flat_operand;
  Collapse(out, l.shape(second), &flat, &flat_operand);
  const int flat_first = l.Reshaped(first, flat), flat_result = l.NewOutput(result, flat);
  const auto describe = [&](int operand) {
    return Describe(l, operation, flat_first, operand, flat_result, Dense(flat, l.dtype(first)));
  };
  if (!l.Emit({describe(l.Reshaped(second, flat_operand))}, /*accept_reference=*/false))
    EmitOrFail(l, {describe(l.Reshaped(Expanded(l, second, out), flat))});
  Place place = l.PlaceIn(flat_result, Dense(flat, l.dtype(result)));
  place.md = Dense(out, l.dtype(result));
  l.SetPlace(result, place);
}

const KindRow kBinaryRow = {DescribeBinary, LowerBinary};

}  // namespace tvm_byoc_dnnl
