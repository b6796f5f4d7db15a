// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "check.h"
#include "common/graph.h"

namespace {

using tvm_byoc_dnnl::Dim;
using tvm_byoc_dnnl::Dims;
using tvm_byoc_dnnl::ElementCount;
using tvm_byoc_dnnl::Evaluate;
using tvm_byoc_dnnl::kUnknownDim;
using tvm_byoc_dnnl::Sorted;
using Op = Dim::Op;

Dim Number(int64_t value) { return Dim{Op::kConst, value, {}}; }
Dim Symbol() { return Dim{Op::kSymbol, 0, {}}; }
Dim Make(Op op, Dim a, Dim b) { return Dim{op, 0, {std::move(a), std::move(b)}}; }

}  // namespace

TEST(Expressions) {
  struct Row {
    Op op;
    int64_t a, b, result;
  };
  for (const Row& row :
       {Row{Op::kAdd, 7, 2, 9}, Row{Op::kSub, 7, 2, 5}, Row{Op::kMul, 7, 2, 14},
        Row{Op::kFloorDiv, 7, 2, 3}, Row{Op::kMod, 7, 2, 1}, Row{Op::kMax, 7, 2, 7},
        Row{Op::kMin, 7, 2, 2}, Row{Op::kMod, -7, 4, 1}, Row{Op::kMod, 7, -1, 0}}) {
    CHECK_EQUAL(Evaluate(Make(row.op, Number(row.a), Number(row.b)), {}), row.result);
  }
  // Rounds down, as Python does, also where a part is negative.
  Dim minus = Make(Op::kFloorDiv, Number(-7), Number(2));
  CHECK_EQUAL(Evaluate(Make(Op::kAdd, minus, Number(10)), {}), 6);
}

TEST(Symbols) { CHECK_EQUAL(Evaluate(Make(Op::kMul, Symbol(), Number(4)), {3}), 12); }

TEST(SumsAndProductsCompareInAnyOrder) {
  const Dim n = Symbol(), p{Op::kSymbol, 1, {}};
  const Dim left = Sorted(Make(Op::kAdd, Sorted(Make(Op::kAdd, n, Number(1))), p));
  const Dim right = Sorted(Make(Op::kAdd, p, Sorted(Make(Op::kAdd, Number(1), n))));
  CHECK(left == right);
  CHECK_EQUAL(Evaluate(left, {3, 5}), 9);
  CHECK(Sorted(Make(Op::kMul, p, Number(2))) == Sorted(Make(Op::kMul, Number(2), p)));
  CHECK(!(Sorted(Make(Op::kSub, n, p)) == Sorted(Make(Op::kSub, p, n))));
}

TEST(Faults) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  CHECK_THROWS(kInput, "by zero", Evaluate(Make(Op::kMod, Number(1), Symbol()), {0}));
  CHECK_THROWS(kInput, "overflows", Evaluate(Make(Op::kAdd, Number(kMax), Number(1)), {}));
  CHECK_THROWS(kInput, "overflows", Evaluate(Make(Op::kMul, Number(kMax), Number(2)), {}));
  CHECK_THROWS(kInput, "overflows", Evaluate(Make(Op::kFloorDiv, Number(kMin), Number(-1)), {}));
  CHECK_THROWS(kInput, ">= 0", Evaluate(Make(Op::kSub, Number(1), Number(2)), {}));
}

TEST(Counts) {
  CHECK_EQUAL(ElementCount({}), 1);
  CHECK_EQUAL(ElementCount({2, 3}), 6);
  CHECK_EQUAL(ElementCount({2, 0, 3}), 0);
  CHECK_EQUAL(ElementCount({2, kUnknownDim}), kUnknownDim);
  CHECK_EQUAL(ElementCount({0, kUnknownDim}), 0);
  constexpr int64_t kLarge = int64_t{1} << 31;
  CHECK_EQUAL(ElementCount({kLarge, kLarge}), kLarge * kLarge);
  CHECK_THROWS(kGraph, "2^62", ElementCount({kLarge, kLarge, 2}));
  CHECK_THROWS(kGraph, "2^62", ElementCount({0, kLarge, kLarge, 2}));  // its strides would overflow
}
