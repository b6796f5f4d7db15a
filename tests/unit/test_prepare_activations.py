"""Activations spelled out, in many ways and almost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.unit.importing import check, module, node, onnx_model, ops, prepared, rand, same_numbers

SHAPE = (3, 8)
C1, C3 = math.sqrt(2 / math.pi), 0.044715
Spelling = Callable[[Callable[..., Any], Any], Any]  # of (emit, x)


def c(value: float, shape: tuple[int, ...] = ()) -> Any:
    return relax.const(np.full(shape, value, "float32"))


def ops_of(spelling: Spelling) -> dict[str, int]:
    mod = module(lambda b, x: spelling(b.emit, x), SHAPE)
    return same_numbers(mod, 2 * rand(*SHAPE))


def erf_gate(e: Any, x: Any, root2: float = math.sqrt(2)) -> Any:
    return e(R.erf(e(R.divide(x, c(root2)))))


def tanh_gate(e: Any, x: Any, c3: float = C3) -> Any:
    cube = e(R.power(x, c(3.0)))
    return e(R.tanh(e(R.multiply(c(C1), e(R.add(x, e(R.multiply(c(c3), cube))))))))


GELU: dict[str, Spelling] = {
    "x·½·(1+e)": lambda e, x: e(R.multiply(e(R.multiply(x, c(0.5))), e(R.add(c(1), erf_gate(e, x))))),
    "(x·(e+1))·½": lambda e, x: e(R.multiply(e(R.multiply(x, e(R.add(erf_gate(e, x), c(1))))), c(0.5))),
    "½·(x·(1+e))": lambda e, x: e(R.multiply(c(0.5), e(R.multiply(e(R.add(c(1), erf_gate(e, x))), x)))),
    "x·((1+e)/2)": lambda e, x: e(R.multiply(x, e(R.divide(e(R.add(c(1), erf_gate(e, x))), c(2.0))))),
    "x·(1+e)/2": lambda e, x: e(R.divide(e(R.multiply(x, e(R.add(c(1), erf_gate(e, x))))), c(2.0))),
    "½x+½x·e": lambda e, x: e(R.add(e(R.multiply(x, c(0.5))), e(R.multiply(e(R.multiply(c(0.5), x)), erf_gate(e, x))))),
    "x·(½+½e)": lambda e, x: e(R.multiply(x, e(R.add(c(0.5), e(R.multiply(erf_gate(e, x), c(0.5))))))),
    "x·0.7071": lambda e, x: e(
        R.multiply(
            e(R.multiply(x, c(0.5, (1,)))),
            e(R.add(c(1, (1, 8)), e(R.erf(e(R.multiply(c(math.sqrt(0.5)), x)))))),
        )
    ),
}


@pytest.mark.parametrize("spelling", GELU)
def test_gelu(spelling: str) -> None:
    assert ops_of(GELU[spelling]) == {"nn.gelu": 1}


def gelu_tanh(e: Any, x: Any, gate: Any) -> Any:
    return e(R.multiply(e(R.multiply(c(0.5), x)), e(R.add(c(1), gate))))


def factored(e: Any, x: Any) -> Any:
    inner = e(R.add(c(1), e(R.multiply(c(C3), e(R.multiply(x, x))))))
    return e(R.tanh(e(R.multiply(e(R.multiply(x, c(C1))), inner))))


def expanded(e: Any, x: Any) -> Any:
    cube = e(R.multiply(e(R.multiply(x, x)), x))
    return e(R.tanh(e(R.add(e(R.multiply(c(C1), x)), e(R.multiply(c(C1 * C3), cube))))))


def by_sigmoid(e: Any, x: Any) -> Any:
    cube = e(R.power(x, c(3.0)))
    inner = e(R.multiply(c(2 * C1), e(R.add(x, e(R.multiply(c(C3), cube))))))
    return e(R.multiply(x, e(R.sigmoid(inner))))


@pytest.mark.parametrize(
    "spelling",
    [
        lambda e, x: gelu_tanh(e, x, tanh_gate(e, x)),
        lambda e, x: gelu_tanh(e, x, factored(e, x)),
        lambda e, x: gelu_tanh(e, x, expanded(e, x)),
        by_sigmoid,
    ],
    ids=["power", "factored", "expanded", "sigmoid"],
)
def test_gelu_tanh(spelling: Spelling) -> None:
    assert ops_of(spelling) == {"nn.gelu_tanh": 1}


@pytest.mark.parametrize("bias", [False, True])
def test_fast_gelu(bias: bool) -> None:
    fast = node("FastGelu", ["x", "b"] if bias else ["x"], ["y"], domain="com.microsoft")
    got = check(onnx_model([fast], {"x": SHAPE}, {"b": rand(8)}), tolerance=1e-5)
    assert got == ({"add": 1, "nn.gelu_tanh": 1} if bias else {"nn.gelu_tanh": 1})


def logistic(e: Any, x: Any, numerator: Any) -> Any:
    return e(R.divide(numerator, e(R.add(c(1), e(R.exp(e(R.negative(x))))))))


OTHERS: dict[str, tuple[Spelling, str]] = {
    "silu": (lambda e, x: e(R.multiply(e(R.sigmoid(x)), x)), "nn.silu"),
    "silu by exp": (lambda e, x: logistic(e, x, x), "nn.silu"),
    "silu by sigmoid by exp": (lambda e, x: e(R.multiply(x, logistic(e, x, c(1)))), "nn.silu"),
    "sigmoid": (lambda e, x: logistic(e, x, c(1)), "sigmoid"),
    "sigmoid by a factor": (
        lambda e, x: e(R.divide(c(1), e(R.add(e(R.exp(e(R.multiply(x, c(-1))))), c(1))))),
        "sigmoid",
    ),
    "softplus with a threshold": (
        lambda e, x: e(
            R.where(e(R.greater(x, c(20))), x, e(R.log(e(R.add(e(R.exp(x)), c(1))))))  # as PyTorch exports it
        ),
        "nn.softplus",
    ),
    "softplus": (lambda e, x: e(R.log(e(R.add(c(1), e(R.exp(x)))))), "nn.softplus"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    spelling, want = OTHERS[name]
    assert ops_of(spelling) == {want: 1}


def test_onnx_softplus_and_mish() -> None:
    assert check(onnx_model([node("Softplus", ["x"], ["y"])], {"x": SHAPE})) == {"nn.softplus": 1}
    got = check(onnx_model([node("Mish", ["x"], ["y"])], {"x": SHAPE}, opset=18))
    assert got == {"nn.softplus": 1, "tanh": 1, "multiply": 1}


def read_twice(gate: Callable[[Any, Any], Any]) -> Spelling:
    def spelling(e: Any, x: Any) -> Any:
        g = gate(e, x)
        return e(R.add(g, gelu_tanh(e, x, g)))

    return spelling


ALMOST: dict[str, Spelling] = {
    "gelu: wrong root": lambda e, x: gelu_tanh(e, x, erf_gate(e, x, 1.4143)),
    "gelu: wrong half": lambda e, x: e(R.multiply(e(R.multiply(x, c(0.501))), e(R.add(c(1), erf_gate(e, x))))),
    "gelu: wrong one": lambda e, x: e(R.multiply(e(R.multiply(x, c(0.5))), e(R.add(c(1.001), erf_gate(e, x))))),
    "gelu: minus": lambda e, x: e(R.multiply(e(R.multiply(x, c(0.5))), e(R.subtract(c(1), erf_gate(e, x))))),
    "gelu: other x": lambda e, x: e(R.multiply(e(R.multiply(e(R.exp(x)), c(0.5))), e(R.add(c(1), erf_gate(e, x))))),
    "gelu: gate read elsewhere": read_twice(erf_gate),
    "gelu_tanh: gate read elsewhere": read_twice(tanh_gate),
    "gelu_tanh: wrong cube": lambda e, x: gelu_tanh(e, x, tanh_gate(e, x, 0.0448)),
    "quick gelu": lambda e, x: e(R.multiply(x, e(R.sigmoid(e(R.multiply(x, c(1.702))))))),
    "silu: other x": lambda e, x: e(R.multiply(e(R.exp(x)), e(R.sigmoid(x)))),
    "silu: twice": lambda e, x: e(R.multiply(e(R.multiply(x, x)), e(R.sigmoid(x)))),
    "sigmoid: plus": lambda e, x: e(R.divide(c(1), e(R.add(c(1), e(R.exp(x)))))),
    "sigmoid: wrong one": lambda e, x: e(R.divide(c(1), e(R.add(c(1.01), e(R.exp(e(R.negative(x)))))))),
    "softplus: low threshold": lambda e, x: e(
        R.where(e(R.greater(x, c(2))), x, e(R.log(e(R.add(e(R.exp(x)), c(1.5))))))
    ),
    "softplus: wrong one": lambda e, x: e(R.log(e(R.add(c(1.01), e(R.exp(x)))))),
}


@pytest.mark.parametrize("name", ALMOST)
def test_almost(name: str) -> None:
    found = set(ops_of(ALMOST[name]))
    assert not found & {"nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"}
    assert "sigmoid" not in found or name.startswith(("quick", "silu"))


def test_gate_broadcast_over_x_stays() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var, g: relax.Var) -> Any:
        return b.emit(R.multiply(x, b.emit(R.sigmoid(g))))

    assert same_numbers(module(build, (3, 8), (8,)), rand(3, 8), rand(8)) == {"sigmoid": 1, "multiply": 1}


def test_half_precision_constants() -> None:
    half = lambda v: relax.const(np.array(v, "float16"), "float16")  # noqa: E731

    def build(b: relax.BlockBuilder, x: relax.Var) -> Any:
        gate = b.emit(R.erf(b.emit(R.multiply(x, half(math.sqrt(0.5))))))
        return b.emit(R.multiply(b.emit(R.multiply(x, half(0.5))), b.emit(R.add(half(1), gate))))

    assert ops(prepared(module(build, SHAPE, dtype="float16"))) == {"nn.gelu": 1}
