"""NumPy folds constants to the values that TVM computes, and never to larger tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.tvm_version import quantised_number
from tests.unit.importing import module, ops, prepared, rand, run, same_numbers
from tvm_byoc_dnnl.ir.relax_utils import make_constant, module_of

A, B = rand(3, 4), rand(3, 4, seed=2)
P = np.abs(A) + 0.1


def const(value: Any, dtype: str = "float32") -> relax.Expr:
    return relax.const(np.asarray(value, dtype), dtype)


CASES: dict[str, Callable[[], relax.Expr]] = {
    "permute": lambda: relax.op.permute_dims(const(A)),
    "permute axes": lambda: relax.op.permute_dims(const(rand(2, 3, 4)), [2, 0, 1]),
    "reshape": lambda: relax.op.reshape(const(A), (2, 6)),
    "squeeze": lambda: relax.op.squeeze(const(A[None]), [0]),
    "expand_dims": lambda: relax.op.expand_dims(const(A), [0, 3]),
    "flatten": lambda: relax.op.flatten(const(A)),
    "batch_flatten": lambda: relax.op.nn.batch_flatten(const(rand(2, 3, 4))),
    "broadcast_to": lambda: relax.op.broadcast_to(const(A[0]), (3, 4)),
    "full": lambda: relax.op.full((2, 3), const(2.5), "float32"),
    "full_like": lambda: relax.op.full_like(const(A), const(2.5)),
    "zeros": lambda: relax.op.zeros((2, 3), "float32"),
    "ones_like": lambda: relax.op.ones_like(const(A)),
    "arange": lambda: relax.op.arange(1, 9, 2, "int64"),
    "astype": lambda: relax.op.astype(const(A * 9), "int32"),
    "add": lambda: relax.op.add(const(A), const(B)),
    "broadcast": lambda: relax.op.subtract(const(A), const(B[0])),
    "multiply": lambda: relax.op.multiply(const(A), const(B)),
    "divide": lambda: relax.op.divide(const(A), const(P)),
    "power": lambda: relax.op.power(const(P), const(B)),
    "sqrt": lambda: relax.op.sqrt(const(P)),
    "rsqrt": lambda: relax.op.rsqrt(const(P)),
    "exp": lambda: relax.op.exp(const(A)),
    "log": lambda: relax.op.log(const(P)),
    "tanh": lambda: relax.op.tanh(const(A)),
    "sigmoid": lambda: relax.op.sigmoid(const(A)),
    "erf": lambda: relax.op.erf(const(A)),
    "negative": lambda: relax.op.negative(const(A)),
    "abs": lambda: relax.op.abs(const(A)),
    "maximum": lambda: relax.op.maximum(const(A), const(B)),
    "isnan": lambda: relax.op.isnan(const([np.nan, 1, np.inf])),
    "less": lambda: relax.op.less(const(A), const(B)),
    "where": lambda: relax.op.where(const(A > 0, "bool"), const(A), const(B)),
    "clip": lambda: relax.op.clip(const(A), -0.5, 0.5),
    "take": lambda: relax.op.take(const(A), const([2, 0], "int64"), 0),
    "gather_elements": lambda: relax.op.gather_elements(const(A), const([[0, 3], [1, 1], [2, 0]], "int64"), 1),
    "index_tensor": lambda: relax.op.index_tensor(const(A), [const([[0], [2]], "int64"), const([[1, 3]], "int64")]),
    "cumsum": lambda: relax.op.cumsum(const(A), 1),
    "bitwise_and": lambda: relax.op.bitwise_and(const(A > 0, "bool"), const(B > 0, "bool")),
    "slice": lambda: relax.op.strided_slice(const(A), [0, 1], [1, 0], [3, 4], [1, 2]),
    "slice from behind": lambda: relax.op.strided_slice(const(A), [1], [-3], [-1]),
    "concat": lambda: relax.op.concat([const(A), const(B)], 1),
    "tile": lambda: relax.op.tile(const(A), (2, 3)),
    "stack": lambda: relax.op.stack([const(A), const(B)], 1),
    "sum": lambda: relax.op.sum(const(A), [1], keepdims=True),
    "max": lambda: relax.op.max(const(A)),
    "shape_to_tensor": lambda: relax.op.shape_to_tensor(relax.ShapeExpr([3, 4])),
}


@pytest.mark.parametrize("name", CASES)
def test_fold(name: str) -> None:
    mod = module(lambda b, _x: b.emit(CASES[name]()), (1,))
    after = prepared(mod)
    assert ops(after) == {}
    (got,), (want,) = run(after, rand(1)), run(mod, rand(1))
    assert got.dtype == want.dtype
    assert_right(got, want, 1e-6, least=1.0, elementwise=True)


ODD = np.array([[np.nan, 1], [np.inf, np.nan], [-np.inf, 2], [3, 3]])
#: the function, the values of its operand, their dtype, and the result
ODD_CASES: dict[str, tuple[Callable[[Any], Any], Any, str, Any]] = {
    "running sums of another dtype": (
        lambda x: relax.op.cumsum(x, 0, dtype="int32"),
        [120, 100, -7],
        "int8",
        [120, 220, 213],
    ),
    "a running sum of float16": (
        lambda x: relax.op.cumsum(x, 0),
        np.ones(3000),
        "float16",
        np.arange(1, 3001).astype("float16"),
    ),
    "a sum of bfloat16": (relax.op.sum, np.ones(3000), "bfloat16", 3008),
    "a product of bfloat16": (relax.op.prod, np.full(30, 1.0078125), "bfloat16", 1.265625),
    "the largest": (lambda x: relax.op.max(x, 1), ODD, "float32", [np.nan, np.nan, 2, 3]),
    "the least": (lambda x: relax.op.min(x, [0], True), ODD, "float16", [[np.nan, np.nan]]),
    "the largest of bfloat16": (lambda x: relax.op.max(x, 1), ODD, "bfloat16", [np.nan, np.nan, 2, 3]),
    "of none the largest": (lambda x: relax.op.max(x, 1), np.ones((0, 0)), "int8", np.ones(0)),
    "larger": (lambda x: relax.op.maximum(x, x), ODD, "bfloat16", ODD),
    "not equal": (lambda x: relax.op.not_equal(x, x), ODD, "float32", np.isnan(ODD)),
    "signs": (relax.op.sign, ODD, "float32", np.sign(np.nan_to_num(ODD))),
    "bounds beyond the dtype": (lambda x: relax.op.clip(x, -2, 3), [0, 7], "uint8", [0, 3]),
}


@pytest.mark.parametrize("case", ODD_CASES.values(), ids=ODD_CASES)
def test_a_fold_and_host_code_agree_on_odd_numbers(case: tuple[Callable[[Any], Any], Any, str, Any]) -> None:
    function, values, dtype, expected = case
    array = np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = relax.Var("x", relax.TensorType(array.shape, dtype))
    host = module_of([x], lambda _b: function(x))
    folded = prepared(module_of([relax.Var("unread", x.ty)], lambda _b: function(make_constant(array, dtype))))
    for mod in (host, folded):
        vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="byoc"), tvm.cpu())
        got = vm["main"](tvm.runtime.tensor(array)).numpy()
        np.testing.assert_array_equal(got.astype("float64"), np.asarray(expected, "float64"))


def test_chains_fold_to_one_constant() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        w = b.emit(relax.op.permute_dims(const(rand(6, 4))))
        w = b.emit(relax.op.multiply(w, const(2.0)))
        return b.emit(relax.op.matmul(x, b.emit(relax.op.reshape(w, (4, 6)))))

    assert same_numbers(module(build, (3, 4)), rand(3, 4)) == {"matmul": 1}


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_bias(per_channel: bool) -> None:
    scale = const(np.abs(rand(6)) if per_channel else 0.25)
    zero = const(np.zeros(6) if per_channel else 0, "int32")

    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        bias = b.emit(relax.op.dequantize(const(np.arange(6) * 100 - 300, "int32"), scale, zero, axis=0))
        return b.emit(relax.op.add(x, bias))

    assert same_numbers(module(build, (2, 6)), rand(2, 6)) == {"add": 1}


@pytest.mark.parametrize("shape", [pytest.param((), marks=quantised_number), (1,)])
def test_quantised_number(shape: tuple) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        factor = const(np.full(shape, 200), "uint8")
        return b.emit(relax.op.multiply(x, relax.op.dequantize(factor, const(0.25), const(7, "uint8"), axis=0)))

    assert same_numbers(module(build, (2, 6)), rand(2, 6)) == {"multiply": 1}


def test_a_quantised_zero_is_not_added() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        zeros, others = const(np.full((2, 6), 5), "uint8"), const(np.arange(12).reshape(2, 6), "uint8")
        y = b.emit(relax.op.add(relax.op.dequantize(zeros, const(0.25), const(5, "uint8")), x))
        y = b.emit(relax.op.subtract(y, relax.op.dequantize(zeros, const(0.25), const(5, "uint8"))))
        return b.emit(relax.op.add(y, relax.op.dequantize(others, const(0.25), const(5, "uint8"))))

    assert same_numbers(module(build, (2, 6)), rand(2, 6)) == {"add": 1, "dequantize": 1}


def test_split_of_a_constant() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parts = b.emit(relax.op.split(const(rand(6, 4)), [1, 3], 0))
        return b.emit(relax.op.add(x, b.emit(parts[1])))

    assert same_numbers(module(build, (2, 4)), rand(2, 4)) == {"add": 1}


def test_shape_of_a_static_tensor() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        shape = b.emit(relax.op.shape_to_tensor(b.emit(relax.op.shape_of(x))))
        to = b.emit(relax.op.tensor_to_shape(b.emit(relax.op.take(shape, const([1, 0], "int64"), 0))))
        return b.emit(relax.op.reshape(x, to))

    assert same_numbers(module(build, (2, 3)), rand(2, 3)) == {"reshape": 1}


def test_a_size_that_is_known_takes_the_place_of_its_symbol_in_arguments_too() -> None:
    n = tirx.Var("n", "int64")

    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        size = b.emit(relax.op.tensor_to_shape(const([3], "int64")))
        b.match_cast(size, relax.ShapeType([n]))
        numbers = b.emit(relax.op.astype(relax.op.arange(0, n, 1, "int64"), "float32"))
        return b.emit(relax.op.power(numbers, const(2.0)))

    built = byoc.compile(module(build, (2, 3)), "dnnl", exclude=["relax.power"])  # no compiler takes any call
    np.testing.assert_array_equal(byoc.Runner(built)(rand(2, 3)), [0, 1, 4])


@pytest.mark.parametrize(
    "call",
    [
        lambda: relax.op.broadcast_to(const(1.0), (512, 512)),
        lambda: relax.op.zeros((512, 512), "float32"),
        lambda: relax.op.multiply(const(rand(512, 1)), const(rand(1, 512))),
    ],
    ids=["broadcast", "zeros", "outer product"],
)
def test_no_blow_up(call: Callable[[], relax.Expr]) -> None:
    mod = module(lambda b, _x: b.emit(call()), (1,))
    assert len(ops(prepared(mod))) == 1


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_are_made_real_whatever_their_size(transposed: bool) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        w = b.emit(relax.op.broadcast_to(const(0.02), (300, 200) if transposed else (200, 300)))
        w = b.emit(relax.op.permute_dims(w)) if transposed else w
        return b.emit(relax.op.matmul(x, w))

    assert same_numbers(module(build, (2, 200)), rand(2, 200)) == {"matmul": 1}


def test_a_broadcast_that_the_reader_does_anyway() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(relax.op.multiply(x, b.emit(relax.op.broadcast_to(const(2.0), (512, 512)))))

    assert same_numbers(module(build, (512, 512)), rand(512, 512)) == {"multiply": 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: relax.op.dequantize(const([[1, 2]], "int8"), const(0.5), const(0, "int8"), axis=0),
        lambda: relax.op.take(const(A), const([5], "int64"), 0),
        lambda: relax.op.astype(const([np.inf, 1]), "int32"),
        lambda: relax.op.divide(const([7], "int32"), const([-2], "int32")),
    ],
    ids=["quantised weights", "index out of range", "infinity as an integer", "integer division"],
)
def test_what_is_not_folded(call: Callable[[], relax.Expr]) -> None:
    mod = module(lambda b, _x: b.emit(call()), (1,))
    assert len(ops(prepared(mod))) == 1


def test_random_is_not_folded() -> None:
    names = {n for n in tvm.ir.Op.list_op_names() if "multinomial" in n}
    from tvm_byoc_dnnl.prepare import constants

    assert not names & set(constants.RULES)
