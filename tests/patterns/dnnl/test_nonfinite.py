"""NaN, infinities, zeros of both signs, denormal and huge numbers through every operator: as NumPy has it in float64.

What is not is on a list of docs/numerics.md, and the test asks that it still is so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, assert_right, const, data, number
from tests.isa import has_kernels
from tvm_byoc_dnnl.patterns.dnnl.library import isa
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import lower_region

pytestmark = pytest.mark.native

op, nn = relax.op, relax.op.nn
NAN, INF = np.nan, np.inf
MAX, DENORMAL = float(np.finfo("float32").max), 1e-40
#: sixteen of them, for a vector of any instruction set
SPECIAL = np.array(
    [NAN, INF, -INF, -0.0, 0.0, DENORMAL, -DENORMAL, MAX, -MAX, 1e30, -1e30, 200, -200, 1, -1, 0.3], "float32"
)
HERE, LEFT = np.indices((16, 16)).reshape(2, -1)
LEFT, HERE = SPECIAL[LEFT].reshape(16, 16), SPECIAL[HERE].reshape(16, 16)
_erf = np.vectorize(math.erf, otypes=["float64"])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


#: name → function, reference
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "abs": (op.abs, np.abs),
    "exp": (op.exp, np.exp),
    "log": (op.log, np.log),
    "negative": (op.negative, np.negative),
    "gelu": (nn.gelu, lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2)))),
    "gelu_tanh": (
        nn.gelu_tanh,
        lambda x: x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (nn.silu, lambda x: x * sigmoid(x)),
    "round": (op.round, np.round),
    "rsqrt": (op.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (op.sigmoid, sigmoid),
    "sqrt": (op.sqrt, np.sqrt),
    "square": (op.square, np.square),
    "tanh": (op.tanh, np.tanh),
    "leaky_relu": (lambda x: nn.leakyrelu(x, 0.5), lambda x: np.where(x < 0, x * 0.5, x)),
    "softplus": (nn.softplus, lambda x: np.logaddexp(0, x)),
    "hardswish": (
        lambda x: op.multiply(x, op.clip(op.add(op.multiply(x, number(0.25)), number(0.5)), 0, 1)),
        lambda x: x * np.clip(x * 0.25 + 0.5, 0, 1),
    ),
    "hardsigmoid": (
        lambda x: op.clip(op.add(op.multiply(x, number(0.25)), number(0.5)), 0, 1),
        lambda x: np.clip(x * 0.25 + 0.5, 0, 1),
    ),
    "power 2.5": (lambda x: op.power(x, number(2.5)), lambda x: np.power(x, 2.5)),
    "power -1": (lambda x: op.power(x, number(-1)), lambda x: 1 / x),
    "power 0.5": (lambda x: op.power(x, number(0.5)), lambda x: np.power(x, 0.5)),
    "power 0": (lambda x: op.power(x, number(0)), lambda x: np.power(x, 0)),
    "power 2": (lambda x: op.power(x, number(2)), lambda x: np.power(x, 2)),
    "times 0": (lambda x: op.multiply(x, number(0)), lambda x: x * 0),
    "by 3": (lambda x: op.divide(x, number(3)), lambda x: x / 3),
    "3 by": (lambda x: op.divide(number(3), x), lambda x: 3 / x),
    "3 less": (lambda x: op.subtract(number(3), x), lambda x: 3 - x),
    "mish": (lambda x: op.multiply(x, op.tanh(nn.softplus(x))), lambda x: x * np.tanh(np.logaddexp(0, x))),
    "logsigmoid": (lambda x: op.log(op.sigmoid(x)), lambda x: -np.logaddexp(0, -x)),
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: op.clip(x, 0.125, 6), lambda x: np.clip(x, 0.125, 6)),
    "maximum": (lambda x: op.maximum(x, number(0.125)), lambda x: np.maximum(x, 0.125)),
    "minimum": (lambda x: op.minimum(x, number(0.125)), lambda x: np.minimum(x, 0.125)),
    "maximum of 0.125": (lambda x: op.maximum(number(0.125), x), lambda x: np.maximum(x, 0.125)),
    "minimum of 0.125": (lambda x: op.minimum(number(0.125), x), lambda x: np.minimum(x, 0.125)),
    "prelu": (
        lambda x: nn.prelu(x, relax.const(np.full(16, 0.25, "float32")), 1),
        lambda x: np.where(x < 0, x * 0.25, x),
    ),
}
#: name → special numbers for which another number comes out of a post-operation of oneDNN's
FUSED: dict[str, dict[float, float]] = {
    "relu": {NAN: 0},
    "clip": {NAN: 0.125},
    "maximum": {NAN: 0.125},
    "minimum": {NAN: 0.125},
    "hardsigmoid": {NAN: 1},
}
#: the same of some instruction sets; others are exact
SOMETIMES: dict[str, dict[float, float]] = {
    "gelu": {INF: NAN, MAX: INF},
    "log": {DENORMAL: -88.02120208740234},
}


def compare(got: np.ndarray, want: np.ndarray) -> None:
    """NaN and infinities position by position, numbers nearly."""
    with np.errstate(all="ignore"):
        want = want.astype(got.dtype)
    tolerance = 2e-5 if got.dtype == np.float32 else 1e-2
    assert_right(got, want, tolerance, least=1e-6 / tolerance, elementwise=True)


def expected(name: str, x: np.ndarray, got: np.ndarray, deviations: dict[str, dict[float, float]]) -> np.ndarray:
    with np.errstate(all="ignore"):
        want = UNARY[name][1](x.astype("float64"))
    for special, result in deviations.get(name, {}).items():
        want = np.where(np.isnan(x) if np.isnan(special) else x == np.float32(special), result, want)
    for special, result in SOMETIMES.get(name, {}).items():
        deviates = (got == result) | (np.isnan(got) & np.isnan(result))
        want = np.where((x == np.float32(special)) & deviates, result, want)
    return want


@pytest.mark.parametrize("name", UNARY)
def test_alone(name: str) -> None:
    x = np.tile(SPECIAL, (3, 1))
    case = Case(UNARY[name][0], (data(values=x),)).offloads()
    got = case.run()[0]
    compare(got, expected(name, x, got, {} if has_kernels() else FUSED))


@pytest.mark.parametrize("name", [n for n in UNARY if n != "prelu"])
def test_behind_a_convolution(name: str) -> None:
    x = np.broadcast_to(SPECIAL, (1, 16, 1, 16)).copy()
    ones = const(values=np.ones((16, 1, 1, 1), "float32"))
    case = Case(lambda x, w: UNARY[name][0](nn.conv2d(x, w, groups=16)), (data(values=x), ones)).offloads()
    got = case.run()[0]
    compare(got, expected(name, x + np.float32(0), got, FUSED))  # a sum that begins with 0 has no -0


BINARY = {
    "add": (op.add, np.add),
    "subtract": (op.subtract, np.subtract),
    "multiply": (op.multiply, np.multiply),
    "divide": (op.divide, np.divide),
    **{
        name: (lambda a, b, f=getattr(op, name): op.astype(f(a, b), "float32"), getattr(np, name))
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
    },
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
}


@pytest.mark.parametrize("name", BINARY)
def test_of_two(name: str) -> None:
    function, reference = BINARY[name]
    case = Case(function, (data(values=LEFT), data(values=HERE))).offloads()
    with np.errstate(all="ignore"):
        compare(case.run()[0], reference(LEFT, HERE))


def denormals_become_zero() -> bool:
    """Whether oneDNN converts float32 to bfloat16 by an instruction of this CPU, which takes denormal numbers for 0."""
    return any(name in isa() for name in ("bf16", "fp16", "amx"))


@pytest.mark.parametrize("fixed", ["none", "a", "b"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where(fixed: str, dtype: str) -> None:
    a = np.stack([np.tile(SPECIAL, 2), np.roll(np.tile(SPECIAL, 2), 3)])
    b = a[:, ::-1].copy()
    condition = np.arange(64).reshape(2, 32) % 3 % 2 == 0
    operands = [data(values=a, dtype=dtype), data(values=b, dtype=dtype)]
    if fixed != "none":
        special = NAN if fixed == "b" else -INF
        operands["ab".index(fixed)] = const(values=np.array(special), dtype=dtype)
        a, b = (np.float32(special), b) if fixed == "a" else (a, np.float32(special))
    case = Case(op.where, (data(values=condition, dtype="bool"), *operands))
    case.offloads()
    with np.errstate(all="ignore"):
        want = np.where(condition, a, b).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype("float32")
    if dtype == "bfloat16" and denormals_become_zero():
        want[np.abs(want) < np.finfo("float32").tiny] *= 0
    np.testing.assert_array_equal(case.run()[0].astype("float32"), want)


def rows() -> np.ndarray:
    x = np.random.default_rng(0).uniform(-2, 2, (11, 37)).astype("float32")
    x[0, 3], x[1, 3], x[2, 3], x[3, :-1], x[4, :] = NAN, INF, -INF, -INF, 1e30
    x[5, 1], x[5, 30], x[6, 36], x[7, 0], x[8, :], x[9, :] = INF, -INF, NAN, 200, NAN, -INF
    return x


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    centred = x - x.max(axis, keepdims=True)
    return centred - np.log(np.exp(centred).sum(axis, keepdims=True))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(11, 37, 1), (1, 11, 37), (11, 1, 37)], ids=str)
@pytest.mark.parametrize(
    ("function", "reference"),
    [(nn.softmax, softmax), (nn.log_softmax, log_softmax)],
    ids=["softmax", "log_softmax"],
)
def test_softmax(function: Any, reference: Any, shape: tuple[int, ...], axis: int) -> None:
    x = rows().reshape(shape)
    case = Case(lambda x: function(x, axis), (data(values=x),)).offloads()
    with np.errstate(all="ignore"):
        compare(case.run()[0], reference(x.astype("float64"), axis))


def test_a_softmax_whose_rows_are_summed_costs_nothing_more() -> None:
    x, y = rows(), np.random.default_rng(1).uniform(0.5, 2, (37, 5)).astype("float32")
    case = Case(lambda x, y: op.matmul(nn.softmax(x, -1), y), (data(values=x), data(values=y))).offloads()
    assert [kind for kind, _ in case.nodes()] == ["softmax", "matmul"]
    with np.errstate(all="ignore"):
        compare(case.run()[0], softmax(x.astype("float64"), 1) @ y)


@pytest.mark.parametrize(("axis", "groups", "is_free"), [(1, 1, True), (1, 2, False), (2, 1, False)])
def test_a_softmax_of_channels_that_a_convolution_sums(axis: int, groups: int, is_free: bool) -> None:
    x = rows()[:10, :36].reshape(1, 10, 6, 6)  # each special value in one channel
    w = np.random.default_rng(1).uniform(0.5, 2, (4, 10 // groups, 1, 1)).astype("float32")
    function = lambda x, w: nn.conv2d(nn.softmax(x, axis), w, groups=groups)  # noqa: E731
    case = Case(function, (data(values=x), const(values=w))).offloads()
    assert ([kind for kind, _ in case.nodes()] == ["softmax", "convolution"]) is is_free
    with np.errstate(all="ignore"):
        shares = softmax(x.astype("float64"), axis).reshape(groups, 10 // groups, 36)
        wanted = [w[i, :, 0, 0] @ shares[i * groups // 4] for i in range(4)]
    compare(case.run()[0], np.stack(wanted).reshape(1, 4, 6, 6))


#: function, kinds of its nodes with the option finite_math
FEWER = {
    "exp": (op.exp, ["eltwise"]),
    "softmax": (lambda x: nn.softmax(x, -1), ["softmax"]),
    "max": (lambda x: op.max(x, 1), ["reduction", "reshape"]),
}


@pytest.mark.parametrize("name", FEWER)
def test_finite_math_needs_fewer_primitives(name: str) -> None:
    function, kinds = FEWER[name]
    x = np.random.default_rng(0).uniform(-2, 2, (5, 37)).astype("float32")  # shorter rows keep a NaN in any case
    case = Case(function, (data(values=x),))
    region, ns = case.regions[0], namespace("dnnl")
    exact, finite = (lower_region(ns, region, "r", options={"finite_math": finite}) for finite in (False, True))
    assert [n.kind for n in finite.nodes] == kinds
    assert len(exact.nodes) > len(finite.nodes)
    x[1, 2] = np.nan
    kept = case.run()[0]
    mod = byoc.set_target_options(case.partitioned, "dnnl", finite_math=True)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="byoc"), tvm.cpu())
    lost = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert np.isnan(kept).sum() > np.isnan(lost).sum()
    assert_right(lost[2:], kept[2:], 1e-6, elementwise=True)


#: functions that answer a NaN with a bound in post-operations of oneDNN
BOUNDED = {
    "relu": lambda x: nn.relu(x),
    "clip": lambda x: op.clip(x, 0, 6),
    "maximum": lambda x: op.maximum(x, relax.const(0.5, "float32")),
    "minimum of tensors": lambda x: op.minimum(x, op.multiply(x, x)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_pass_a_nan_on_with_the_option(name: str) -> None:
    x = np.random.default_rng(0).uniform(-9, 9, (5, 7)).astype("float32")
    x[1, 2], x[2, 3], x[3, 4] = np.nan, np.inf, -np.inf
    case = Case(lambda x: BOUNDED[name](op.negative(x)), (data(values=x),))
    plain = case.run()[0]
    mod = byoc.set_target_options(case.partitioned, "dnnl", keep_nan=True)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="byoc"), tvm.cpu())
    kept = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert np.isnan(kept[1, 2])
    kept[1, 2] = plain[1, 2]
    np.testing.assert_array_equal(kept, plain)


@pytest.mark.parametrize("other", ["output", "first axis", "second operand", "reshaped"])
def test_any_other_reader_of_a_softmax_sees_the_nan(other: str) -> None:
    x = rows()[:, :11].copy()
    x[6, 4] = NAN
    y = np.random.default_rng(1).uniform(0.5, 2, (11, 11)).astype("float32")
    functions = {
        "output": lambda s, y: relax.Tuple([op.matmul(s, y), s]),
        "first axis": lambda s, y: op.matmul(op.permute_dims(s), y),
        "second operand": lambda s, y: op.matmul(y, s),
        "reshaped": lambda s, y: op.matmul(op.reshape(s, (11 * 11, 1)), op.reshape(y, (1, 11 * 11))),
    }
    case = Case(lambda x, y: functions[other](nn.softmax(x, -1), y), (data(values=x), data(values=y)))
    with np.errstate(all="ignore"):
        s = softmax(x.astype("float64"), 1)
        wanted = {
            "output": lambda: [s @ y, s],
            "first axis": lambda: [s.T @ y],
            "second operand": lambda: [y @ s],
            "reshaped": lambda: [s.reshape(-1, 1) @ y.reshape(1, -1)],
        }[other]()
        for got, want in zip(case.run(), wanted, strict=True):
            compare(got, want)


@pytest.mark.parametrize("axis", [0, 1, [0, 1]], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions(name: str, axis: Any) -> None:
    x = rows()
    case = Case(lambda x: getattr(op, name)(x, axis), (data(values=x),)).offloads()
    with np.errstate(all="ignore"):
        compare(case.run()[0], getattr(np, name)(x.astype("float64"), tuple(np.atleast_1d(axis))))


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling(kind: str, channels: int) -> None:
    x = np.random.default_rng(1).uniform(-2, 2, (1, channels, 8, 8)).astype("float32")
    x[0, 0, 2, 2], x[0, 1, 3, 3], x[0, 2, 5, 5], x[0, 2, 0:2, 0:2] = NAN, INF, -INF, -INF
    windows = x.astype("float64").reshape(1, channels, 4, 2, 4, 2)
    # a maximum of a window passes over a NaN, as TVM's and ONNX Runtime's
    want = np.nanmax(windows, (3, 5)) if kind == "max" else windows.mean((3, 5))
    case = Case(lambda x: getattr(nn, f"{kind}_pool2d")(x, (2, 2), (2, 2)), (data(values=x),)).offloads()
    compare(case.run()[0], want)


MOVED = {
    "concat": (lambda x: op.concat([x, x], 0), lambda x: np.concatenate([x, x])),
    "permute_dims": (op.permute_dims, np.transpose),
    "pad": (
        lambda x: nn.pad(x, [1, 1, 2, 0], pad_value=-INF),
        lambda x: np.pad(x, ((1, 1), (2, 0)), constant_values=-INF),
    ),
    "strided_slice": (lambda x: op.strided_slice(x, [1], [1], [16], [3]), lambda x: x[:, 1:16:3]),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_only_moved_stays_to_the_bit(name: str) -> None:
    function, reference = MOVED[name]
    got = Case(function, (data(values=LEFT),)).offloads().run()[0]
    assert got.tobytes() == np.ascontiguousarray(reference(LEFT)).tobytes()
