"""Integers that are made of functions: as NumPy has them in float64, rounded to float32 before the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.isa import has_kernels
from tests.unit.importing import node, onnx_model, ops
from tvm_byoc_dnnl.prepare import ExactForms

pytestmark = [pytest.mark.native, pytest.mark.skipif(not has_kernels(), reason="they need AVX2")]

op, nn = relax.op, relax.op.nn
Function = Callable[[Any], Any]
erf = np.vectorize(math.erf, otypes=["float64"])


def number(value: float) -> Any:
    return relax.const(np.float32(value))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


#: name → the call, the function in float64
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "acosh": (op.acosh, np.arccosh),
    "asinh": (op.asinh, np.arcsinh),
    "atanh": (op.atanh, np.arctanh),
    "cosh": (op.cosh, np.cosh),
    "exp": (op.exp, np.exp),
    "gelu": (nn.gelu, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    "gelu_tanh": (nn.gelu_tanh, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "log": (op.log, np.log),
    "sigmoid": (op.sigmoid, sigmoid),
    "silu": (nn.silu, lambda x: x * sigmoid(x)),
    "sinh": (op.sinh, np.sinh),
    "softplus": (nn.softplus, lambda x: np.logaddexp(0, x)),
    "tan": (op.tan, np.tan),
    "tanh": (op.tanh, np.tanh),
}
STEPS: dict[str, tuple[Function, Function]] = {
    "ceil": (op.ceil, np.ceil),
    "floor": (op.floor, np.floor),
    "integer": (lambda x: op.astype(x, "int64"), np.trunc),
    "remainder": (lambda x: op.floor_mod(x, number(7)), lambda x: np.mod(x, np.float32(7))),
    "round": (op.round, np.round),
    "trunc": (op.trunc, np.trunc),
}
#: 3,001 numbers from -3 to 3, those near them, and those of which a function is almost nothing or very large
X = np.concatenate([np.linspace(-3, 3, 3001), np.linspace(-3, 3, 500) * 1.000001, [1e-7, -1e-7, 30, -30]])
X = X.astype("float32")


def module(build: Function, *shape: Any) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(build(x)))
        bb.emit_func_output(out)
    return bb.get()


def results(mod: tvm.IRModule, x: np.ndarray, **options: Any) -> np.ndarray:
    return np.asarray(byoc.Runner(byoc.compile(mod, policy=byoc.RegionPolicy(), **options))(x))


WAYS: dict[str, dict[str, Any]] = {"dnnl": {}, "unprepared": {"prepare": False}, "tvm": {"compiler": []}}


#: TVM's log is right up to a unit in the last place
@pytest.mark.parametrize(("name", "way"), [(n, w) for n in FUNCTIONS for w in WAYS if (n, w) != ("log", "tvm")])
def test_a_step_behind_a_function(name: str, way: str) -> None:
    """There are so many steps that each unit in the last place is one or more."""
    call, function = FUNCTIONS[name]
    got = results(module(lambda x: op.floor(op.multiply(call(x), number(2**23))), X.size), X, **WAYS[way])
    with np.errstate(all="ignore"):
        want = np.floor(function(X.astype("float64")).astype("float32") * np.float32(2**23))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("step", STEPS)
def test_every_step(step: str) -> None:
    """Through views and arithmetic."""
    step_of, rounded = STEPS[step]

    def build(x: Any) -> Any:
        scores = op.reshape(op.multiply(op.tanh(x), number(3e6)), (5, 701))
        return step_of(op.add(op.permute_dims(scores), number(0.5)))

    got = results(module(build, X.size), X)
    tanh = np.tanh(X.astype("float64")).astype("float32")
    want = rounded((tanh * np.float32(3e6)).reshape(5, 701).T + np.float32(0.5))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("divisor", [3.0, 49.0, 41.0, 0.1, 7e-5, 64.0, math.log(16)])
def test_a_multiple_divided_is_whole(divisor: float, prepare: bool) -> None:
    divisor = float(np.float32(divisor))
    x = (np.arange(5000) * np.float32(divisor)).astype("float32")

    def build(x: Any) -> Any:
        return op.floor(op.divide(nn.relu(x), number(divisor)))

    np.testing.assert_array_equal(results(module(build, x.size), x, prepare=prepare), np.floor(x / np.float32(divisor)))


def buckets(size: int | str) -> Any:
    """T5's relative positions: the whole part of ``log(n / 8) / log(16) * 8``."""
    nodes = [
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Div", ["f", "eight"], ["d"]),
        node("Log", ["d"], ["l"]),
        node("Div", ["l", "base"], ["q"]),
        node("Mul", ["q", "eight"], ["m"]),
        node("Cast", ["m"], ["y"], to=TensorProto.INT64),
    ]
    constants = {"eight": np.float32(8), "base": np.float32(math.log(16))}
    return onnx_model(nodes, {"n": [size]}, constants, dtypes={"n": TensorProto.INT64, "y": TensorProto.INT64})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", ["k", 504])
def test_positions_fall_into_their_buckets(size: int | str, way: str) -> None:
    n = np.arange(8, 512)
    got = np.asarray(byoc.Runner(byoc.compile(buckets(size), policy=byoc.RegionPolicy(), **WAYS[way]))(n))
    scaled = np.log(n.astype("float32") / np.float32(8)) / np.float32(math.log(16)) * np.float32(8)
    np.testing.assert_array_equal(got, scaled.astype("int64"))
    assert list(got[[8, 24, 56, 120]]) == [2, 4, 6, 8]


def test_other_readers_keep_the_fast_function() -> None:
    """Only what the integer is made of is computed again."""

    def build(x: Any) -> Any:
        gate = op.sigmoid(x)
        return op.add(op.multiply(x, gate), op.floor(op.multiply(gate, number(4))))

    mod = module(build, 64)
    assert ops(ExactForms(mod)) == {"sigmoid": 2, "astype": 2, "multiply": 2, "floor": 1, "add": 1}


LEFT_ALONE: dict[str, Function] = {
    "no function": lambda x: op.floor(op.multiply(x, number(0.3))),
    "no integer": lambda x: op.multiply(op.tanh(x), number(0.3)),
    "a comparison": lambda x: op.greater(op.sigmoid(x), number(0.5)),
    "a sum between": lambda x: op.floor(op.sum(op.sigmoid(x), axis=[0])),
    "another float": lambda x: op.astype(op.sigmoid(x), "float16"),
    "integers from the start": lambda x: op.floor_divide(op.astype(x, "int32"), relax.const(np.int32(3))),
    "a logarithm, which is exact": lambda x: op.floor(op.log(x)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name: str) -> None:
    mod = module(LEFT_ALONE[name], 8)
    assert ExactForms(mod).same_as(mod)


@pytest.mark.parametrize(
    ("call", "at", "value"), [(op.sigmoid, 0, 0.5), (op.tanh, 0, 0), (op.exp, 0, 1), (op.log, 1, 0)]
)
def test_the_numbers_that_are_compared_with(call: Function, at: float, value: float) -> None:
    x = np.full(37, at, "float32")
    np.testing.assert_array_equal(results(module(call, 37), x), np.full(37, value, "float32"))
