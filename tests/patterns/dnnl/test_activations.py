"""Activations recognised in arithmetic: every spelling, as post-ops, and constants that make another function."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, accept, const, data, number

op, nn = relax.op, relax.op.nn


def _refuse(name, pattern, reason, function):
    return pytest.param(Case(function, (data(2, 3, 17, low=-9, high=9),)), pattern, reason, id=name)


def _hard(a: float, b: float):
    return lambda x: np.clip(a * x + b, 0, 1)


def _relu6(x, shift=3.0, high=6.0):
    return op.clip(op.add(x, number(shift)), 0, high)


def _gate(x, factor=1 / 6, shift=0.5, low=0, high=1):
    return op.clip(op.add(op.multiply(x, number(factor)), number(shift)), low, high)


def _elu(x, alpha, one=1.0):
    return op.add(op.multiply(number(-alpha), nn.relu(op.subtract(number(one), op.exp(x)))), nn.relu(x))


def _elu_where(x, alpha, zero=0.0, one=1.0):
    below = op.subtract(op.exp(x), number(one))
    return op.where(op.greater(x, number(zero)), x, below if alpha is None else op.multiply(below, number(alpha)))


def _hardswish(x):
    return x * np.clip(x / 6 + 0.5, 0, 1)


def _elu_reference(alpha: float):
    return lambda x: np.where(x > 0, x, alpha * np.expm1(x))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


#: algorithm, name, function, reference
SPELLINGS = [
    ("hardsigmoid", "onnx", lambda x: _gate(x, 0.2, 0.5), _hard(0.2, 0.5)),
    ("hardsigmoid", "steep", lambda x: _gate(x, 3.0, -1.0), _hard(3, -1)),
    ("hardsigmoid", "relu6", lambda x: op.divide(_relu6(x), number(6.0)), _hard(1 / 6, 0.5)),
    ("hardsigmoid", "sixth", lambda x: op.multiply(_relu6(x), number(1 / 6)), _hard(1 / 6, 0.5)),
    ("hardsigmoid", "no_shift", lambda x: op.clip(op.divide(x, number(4.0)), 0, 1), _hard(0.25, 0)),
    ("hardsigmoid", "no_factor", lambda x: op.clip(op.add(x, number(0.5)), 0, 1), _hard(1, 0.5)),
    ("hardswish", "onnx", lambda x: op.multiply(x, op.divide(_relu6(x), number(6.0))), _hardswish),
    ("hardswish", "swapped", lambda x: op.multiply(op.multiply(number(1 / 6), _relu6(x)), x), _hardswish),
    ("hardswish", "torch", lambda x: op.divide(op.multiply(x, _relu6(x)), number(6.0)), _hardswish),
    ("hardswish", "sixth", lambda x: op.multiply(op.multiply(x, _relu6(x)), number(1 / 6)), _hardswish),
    ("hardswish", "gate", lambda x: op.multiply(x, _gate(x)), _hardswish),
    ("hardswish", "other", lambda x: op.multiply(_gate(x, 0.4, 0.3), x), lambda x: x * _hard(0.4, 0.3)(x)),
    ("elu", "onnx", lambda x: _elu(x, 0.7), _elu_reference(0.7)),
    ("elu", "negative", lambda x: _elu(x, -0.7), _elu_reference(-0.7)),
    ("elu", "where", lambda x: _elu_where(x, 1.3), _elu_reference(1.3)),
    ("elu", "where_plain", lambda x: _elu_where(x, None), _elu_reference(1)),
    ("mish", "softplus", lambda x: op.multiply(x, op.tanh(nn.softplus(x))), lambda x: x * np.tanh(np.logaddexp(x, 0))),
    ("mish", "swapped", lambda x: op.multiply(op.tanh(nn.softplus(x)), x), lambda x: x * np.tanh(np.logaddexp(x, 0))),
    (
        "swish",
        "quick_gelu",
        lambda x: op.multiply(x, op.sigmoid(op.multiply(x, number(1.702)))),
        lambda x: x * _sigmoid(1.702 * x),
    ),
    ("swish", "over", lambda x: op.multiply(op.sigmoid(op.divide(x, number(4.0))), x), lambda x: x * _sigmoid(x / 4)),
    ("soft_relu", "logsigmoid", lambda x: op.log(op.sigmoid(x)), lambda x: -np.logaddexp(-x, 0)),
]
ACCEPT = [
    accept(f"{alg}-{name}", function, data(2, 3, 17, low=-9, high=9), reference=reference)
    for alg, name, function, reference in SPELLINGS
]
ACCEPT += [
    accept("hardswish-scalar", SPELLINGS[6][2], data(), reference=_hardswish),
    accept("mish-empty", SPELLINGS[16][2], data(0, 3), reference=lambda x: x),
    accept("elu-5d", SPELLINGS[12][2], data(2, 3, 1, 5, 7), reference=_elu_reference(0.7)),
]

REFUSE = [
    # B1: the constants decide what function it is
    _refuse("mish-beta", "mish", "beta 2", lambda x: op.multiply(x, op.tanh(nn.softplus(x, 2.0)))),
    _refuse("mish-threshold", "mish", "threshold 5", lambda x: op.multiply(x, op.tanh(nn.softplus(x, 1.0, 5.0)))),
    _refuse("elu-one", "elu", "an elu has 1", lambda x: _elu(x, 0.7, one=1.1)),
    _refuse("elu-zero", "elu_where", "branches meet at 0.5", lambda x: _elu_where(x, 0.7, zero=0.5)),
    _refuse("elu-where-one", "elu_where", "compared with 2", lambda x: _elu_where(x, 0.7, one=2.0)),
    _refuse(
        "hardswish-five",
        "hardswish",
        "between 0 and 1.2",
        lambda x: op.multiply(x, op.divide(_relu6(x), number(5.0))),
    ),
    _refuse("hardswish-low", "hardswish", "between -1 and 1", lambda x: op.multiply(x, _gate(x, low=-1))),
    _refuse("hardsigmoid-high", "hardsigmoid", "between 0 and 2", lambda x: _gate(x, high=2)),
    _refuse(
        "hardsigmoid-precision",
        "hardsigmoid_scaled",
        "between 0 and 0.9",
        lambda x: op.multiply(_relu6(x), number(0.1666)),
    ),
    _refuse(
        "hardswish-per-channel",
        "hardswish",
        "factor is not one number",
        lambda x: op.multiply(
            x, op.clip(op.add(op.multiply(x, relax.const(np.arange(17, dtype="float32"))), number(0.5)), 0, 1)
        ),
    ),
    _refuse(
        "hardsigmoid-broadcast",
        "hardsigmoid",
        "broadcasts",
        lambda x: op.clip(op.add(x, relax.const(np.ones((4, 1, 1, 1), "float32"))), 0, 1),
    ),
]


@pytest.mark.parametrize("case", ACCEPT)
def test_accepted(case):
    case.offloads().matches()


@pytest.mark.parametrize(("alg", "name", "function", "reference"), SPELLINGS)
def test_is_one_primitive(alg, name, function, reference):
    case = Case(function, (data(2, 3, 17),), reference)
    assert [n.attrs["alg"] for g in case.graphs() for n in g.nodes] == [alg]


@pytest.mark.parametrize(("alg", "name", "function", "reference"), [s for s in SPELLINGS if s[0] != "soft_relu"])
def test_is_a_post_op_of_a_convolution(alg, name, function, reference):
    weights = const(8, 3, 1, 1)
    case = Case(
        lambda x, w: function(nn.conv2d(x, w)),
        (data(1, 3, 5, 5, low=-3, high=3), weights),
        lambda x, w: reference(np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0])),
        prepare=False,  # which may fold a factor into the weights
    )
    case.offloads().becomes(("convolution", [alg])).matches()


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-6), ("float64", 1e-15), ("float16", 2e-3)])
def test_softplus_is_never_below_zero(dtype, within):
    """oneDNN's is -1.9e-6 for some numbers: a root of it, as a standard deviation, would be NaN."""
    x = np.r_[np.linspace(-110, 110, 4001), -np.inf, np.inf].astype(dtype)
    (got,) = Case(lambda x: nn.softplus(x, 1.0, 40.0), (data(values=x, dtype=dtype),)).run()
    assert (got >= 0).all()
    np.testing.assert_allclose(got, np.logaddexp(x.astype("float64"), 0), rtol=within, atol=within)


@pytest.mark.parametrize(("case", "pattern", "reason"), REFUSE)
def test_other_constants_make_another_function(case, pattern, reason):
    case.is_not(pattern, reason).matches()


def test_a_part_that_is_read_elsewhere_is_not_fused():
    def function(x):
        softplus = nn.softplus(x)
        return op.multiply(x, op.tanh(softplus)), softplus

    case = Case(function, (data(2, 17),), lambda x: (x * np.tanh(np.logaddexp(x, 0)), np.logaddexp(x, 0)))
    case.offloads().matches()
    assert [n.attrs["alg"] for g in case.graphs() for n in g.nodes if n.kind == "eltwise"] == ["soft_relu", "tanh"]


def test_a_gate_of_something_else_is_not_fused():
    case = Case(
        lambda x, y: op.multiply(y, op.tanh(nn.softplus(x))),
        (data(2, 17), data(2, 17)),
        lambda x, y: y * np.tanh(np.logaddexp(x, 0)),
    )
    case.offloads().matches()
    assert "mish" not in [n.attrs.get("alg") for g in case.graphs() for n in g.nodes]


def test_doubles_stay():
    case = Case(lambda x: op.multiply(x, op.tanh(nn.softplus(x))), (data(2, 3, dtype="float64"),))
    case.is_not("mish", "dtype float64").is_refused("dtype float64")


@pytest.mark.parametrize("spelling", ["torch", "sixth", "onnx"])
def test_hardswish_between_convolutions(spelling):
    """Its divisor is not folded into the weights behind it, as other factors are: it would be no hardswish then."""
    hardswish = next(make for name, how, make, _ in SPELLINGS if (name, how) == ("hardswish", spelling))
    case = Case(
        lambda x, v, w: nn.conv2d(hardswish(nn.conv2d(x, v)), w),
        (data(2, 3, 5, 5), const(7, 3, 1, 1), const(5, 7, 3, 3)),
    )
    case.offloads().becomes(("convolution", ["hardswish"]), "convolution").matches()
