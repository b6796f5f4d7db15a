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
void Arrange(Lowering* lowering, algorithm* alg, int* first, int* second, const Dims& out) {
  Lowering& l = *lowering;
  AskLess(alg, first, second);
  const bool may_swap = Commutes(*alg) && l.shape(*second) == out;
  // Rather bring a plain operand into the other's layout than a layout back to plain.
  if (may_swap &&
      (l.shape(*first) != out || (IsDense(l.Layout(*first)) && !IsDense(l.Layout(*second))))) {
    std::swap(*first, *second);
  } else if (l.shape(*first) != out) {
    *first = Expanded(lowering, *first, out);
  }
}

OpDesc Describe(const Lowering& l, algorithm alg, int first, int second, int result,
                const MemoryDesc& layout) {
  bool alike = l.shape(second) == l.shape(first) && l.dtype(second) == l.dtype(first);
  OpDesc op;
  op.kind = dnnl::primitive::kind::binary;
  op.alg = alg;
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
  algorithm alg = ToDnnl(Kind::kBinary, n.a.alg);
  int first = n.In(0), second = n.In(1);
  Arrange(&l, &alg, &first, &second, n.OutShape());
  const MemoryDesc& present = l.Layout(first);
  const MemoryDesc dense = Dense(l.shape(first), l.dtype(first));
  std::vector<OpDesc> result = {
      Describe(l, alg, first, second, n.output, IsCompact(present) ? present : dense),
      Describe(l, alg, first, second, n.output, dense)};
  for (OpDesc& op : result) op.of_numbers = IsOfNumbers(n.a.alg);
  return result;
}

static void LowerBinary(const NodeView& n) {
  LowerBinary(&n.lowering, ToDnnl(Kind::kBinary, n.a.alg), IsOfNumbers(n.a.alg), n.In(0), n.In(1),
              n.output);
}

void LowerBinary(Lowering* lowering, algorithm alg, bool of_numbers, int first, int second,
                 int result) {
  Lowering& l = *lowering;
  const Dims out = l.shape(result);
  Arrange(lowering, &alg, &first, &second, out);
  Dims flat, flat_operand;
  Collapse(out, l.shape(second), &flat, &flat_operand);
  int flat_first = l.Reshaped(first, flat);
  int flat_result = l.NewOutput(result, flat);
  OpDesc op = Describe(l, alg, flat_first, l.Reshaped(second, flat_operand), flat_result,
                       Dense(flat, l.dtype(first)));
  op.of_numbers = of_numbers;
  if (!l.Emit({op}, /*accept_reference=*/false)) {
    int whole = l.Reshaped(Expanded(lowering, second, out), flat);
    op = Describe(l, alg, flat_first, whole, flat_result, Dense(flat, l.dtype(first)));
    op.of_numbers = of_numbers;
    EmitOrFail(lowering, {op});
  }
  Place place = l.PlaceIn(flat_result, Dense(flat, l.dtype(result)));
  place.md = Dense(out, l.dtype(result));
  l.SetPlace(result, place);
}

const KindRow kBinaryRow = {DescribeBinary, LowerBinary};

}  // namespace tvm_byoc_dnnl
