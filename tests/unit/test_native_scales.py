"""Scales and zero points of operands, against exact integers: float64 holds every sum of products of bytes here."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.graph_reference import RANGES, GraphBuilder
from tests.unit.test_native_kinds import execute, probe, run_emitted, window
from tvm_byoc_dnnl.core.errors import GraphError, UnsupportedError

pytestmark = pytest.mark.native

#: name -> kind, shapes of source and weights, shape of the result, axis of the weights' channels, attributes
PRODUCTS: dict[str, tuple[str, tuple, tuple, tuple, int, dict[str, Any]]] = {
    "matmul": ("matmul", (5, 67), (67, 19), (5, 19), 1, {}),
    "row": ("matmul", (1, 256), (256, 33), (1, 33), 1, {}),
    "long": ("matmul", (3, 1031), (1031, 17), (3, 17), 1, {}),
    "batched": ("matmul", (2, 3, 7, 31), (2, 3, 31, 5), (2, 3, 7, 5), 3, {}),
    "convolution": ("convolution", (2, 17, 9, 7), (13, 17, 3, 3), (2, 13, 9, 7), 0, window(2, pad=1)),
    "strided": ("convolution", (1, 32, 9, 9), (16, 32, 3, 3), (1, 16, 4, 4), 0, window(2, stride=2)),
    "pointwise": ("convolution", (2, 64, 5, 5), (32, 64, 1, 1), (2, 32, 5, 5), 0, window(2)),
    "grouped": ("convolution", (1, 12, 7, 7), (3, 8, 4, 3, 3), (1, 24, 7, 7), 1, window(2, pad=1)),
    "depthwise": ("convolution", (1, 16, 8, 8), (16, 1, 1, 3, 3), (1, 16, 8, 8), 0, window(2, pad=1)),
    "column": ("convolution", (2, 17, 19, 1), (13, 17, 3, 1), (2, 13, 17, 1), 0, window(2)),
    "deconvolution": ("deconvolution", (1, 8, 5, 5), (6, 8, 3, 3), (1, 6, 7, 7), 0, window(2)),
    "doubled": ("deconvolution", (2, 9, 5, 3), (6, 9, 2, 2), (2, 6, 10, 6), 0, window(2, stride=2)),
}
#: what the operands carry: scale of the source, its zero point, scale of the weights, their zero point
CARRIED = {
    "zero_point": ("", "one", "", ""),
    "scales": ("one", "", "one", ""),
    "channels": ("one", "one", "each", ""),
    "all": ("one", "one", "each", "one"),
    "asymmetric": ("", "one", "", "one"),
}


class Scaled:
    """A graph of one node whose operands carry scales and zero points."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = GraphBuilder()
        self.arguments: list[np.ndarray] = []

    def bytes(self, shape: tuple, dtype: str, worst: bool) -> np.ndarray:
        low, high = RANGES[dtype]
        if worst:
            return self.rng.choice(np.array([low, high, high]), shape).astype(dtype)
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def scaling(self, dtype: str, scale: str, zero_point: str, axis: int = -1, count: int = 1) -> dict[str, int]:
        """Constants of one element or of ``count``."""
        found: dict[str, int] = {}
        if scale:
            size = count if scale == "each" else 1
            found["scale"] = self.g.constant(self.rng.uniform(0.01, 0.05, size).astype("float32"))
        if zero_point:
            size, low = count if zero_point == "each" else 1, 1 if dtype == "uint8" else -50
            found["zero_point"] = self.g.constant(self.rng.integers(low, 100, size).astype("int32"))
        if "each" in (scale, zero_point):
            found["axis"] = axis
        return found

    def operand(self, value: np.ndarray, scaling: dict[str, int], constant: bool = False) -> Any:
        if constant:
            tensor = self.g.constant(value)
        else:
            tensor = self.g.input(value.shape, str(value.dtype))
            self.arguments.append(value)
        return {"tensor": tensor, **scaling} if scaling else tensor

    def check(self) -> None:
        (got,), (want,) = execute(self.g, self.arguments), self.g.evaluate(self.arguments)
        if got.dtype == np.int32:
            np.testing.assert_array_equal(got, want)
        elif got.dtype == np.float32:
            slack = 2e-6 * np.abs(want)  # of the scales, which are factors of a whole element
            assert_right(got, want.astype(got.dtype), 2e-6, least=1.0, slack=slack)
        else:  # one step where the value lies halfway between two, but for float32's rounding
            output = self.g.nodes[-1]["outputs"][0]
            off = np.abs(got.astype(np.int64) - want.astype(np.int64))
            assert off.max(initial=0) <= 1, f"{(off > 1).sum()} of {off.size} are off by up to {off.max()}"
            assert (off > 0).mean() < 0.01, output


def product(name: str, source: str, carried: str, result: str, *, worst: bool = False, constant: bool = True) -> Scaled:
    kind, src, weights, out, axis, attrs = PRODUCTS[name]
    case = Scaled(sum(map(ord, name + source + carried + result)))
    scale, zero_point, weights_scale, weights_zero_point = CARRIED[carried]
    channels = out[-1 if kind == "matmul" else 1]
    ids = [
        case.operand(case.bytes(src, source, worst), case.scaling(source, scale, zero_point)),
        case.operand(
            case.bytes(weights, "int8", worst),
            case.scaling("int8", weights_scale, weights_zero_point, axis, channels),
            constant,
        ),
    ]
    of_result = {}
    if result in ("int8", "uint8"):
        of_result = case.scaling(result, "one", "one")
        case.g.values[-2] = case.g.values[-2] * np.float32(200)
    case.g.outputs = [case.g.node(kind, ids, out, result, scaling=of_result, **attrs)]
    return case


#: a product with scales is no integer
RESULTS = [(c, r) for c in CARRIED for r in ("float32", "int8", "uint8", "int32") if r != "int32" or "point" in c]


@pytest.mark.parametrize("worst", [False, True], ids=["random", "extremes"])
@pytest.mark.parametrize(("carried", "result"), [*RESULTS, ("asymmetric", "int32")])
@pytest.mark.parametrize("source", ["uint8", "int8"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, source, carried, result, worst):
    case = product(name, source, carried, result, worst=worst)
    if result == "int32" and not probe(case.g)["ok"]:
        with pytest.raises(UnsupportedError, match="no exact product of integers"):
            execute(case.g, case.arguments)
        return
    case.check()


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("result", ["float32", "int8"])
@pytest.mark.parametrize("name", ["matmul", "convolution", "depthwise"])
def test_bias_and_post_ops_are_in_real_values(name, result, constant):
    kind, src, weights, out, axis, attrs = PRODUCTS[name]
    case = Scaled()
    channels = out[-1 if kind == "matmul" else 1]
    bias = case.rng.integers(-600, 600, (1, channels) if kind == "matmul" else (channels,)).astype("int32")
    ids = [
        case.operand(case.bytes(src, "uint8", False), case.scaling("uint8", "one", "one")),
        case.operand(case.bytes(weights, "int8", False), case.scaling("int8", "each", "", axis, channels), constant),
        case.operand(bias, case.scaling("int32", "each", "", bias.ndim - 1, channels), constant),
    ]
    shape = [1, channels] if kind == "matmul" else [1, channels, *[1] * (len(out) - 2)]
    ids.append(case.g.constant(case.rng.uniform(-2, 2, shape).astype("float32")))
    post_ops = [
        {"kind": "eltwise", "alg": "relu", "alpha": 0.1, "beta": 0.0},
        {"kind": "binary", "alg": "mul", "input": 3},
    ]
    scaling = case.scaling("int8", "one", "one") if result == "int8" else None
    case.g.outputs = [case.g.node(kind, ids, out, result, post_ops, scaling, **attrs)]
    case.check()


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize(("source", "result"), list(itertools.product(["int8", "uint8", "int32", "float32"], repeat=2)))
def test_conversions(source, result, axis):
    if "float32" == source == result:
        zero_points = ("", "")
    else:
        zero_points = ("" if source == "float32" else "one", "" if result == "float32" else "one")
    case = Scaled()
    shape = (3, 5, 7)
    size = shape[axis] if axis >= 0 else 1
    scale = "each" if axis >= 0 else "one"
    value = case.rng.integers(0, 100, shape).astype(source)
    operand = case.operand(value, case.scaling(source, scale, zero_points[0], axis, size))
    scaling = case.scaling(result, scale, zero_points[1], axis, size)
    case.g.outputs = [case.g.node("reorder", [operand], shape, result, scaling=scaling)]
    (got,), (want,) = execute(case.g, case.arguments), case.g.evaluate(case.arguments)
    if result == "float32":
        assert_right(got, want.astype(got.dtype), 1e-6, elementwise=True)
    else:  # the quotient of two numbers in float32 may lie on the other side of a half
        assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= 1
        assert (got != want).mean() < 0.05


OTHERS: dict[str, tuple[str, list[tuple], tuple, dict[str, Any]]] = {
    "eltwise": ("eltwise", [(3, 17)], (3, 17), {"alg": "tanh", "alpha": 0.0, "beta": 0.0}),
    "add": ("binary", [(3, 17), (1, 17)], (3, 17), {"alg": "add"}),
    "pooling": ("pooling", [(1, 5, 6, 6)], (1, 5, 5, 5), {"alg": "avg_include_padding", "kernel": [2, 2], **window(2)}),
    "softmax": ("softmax", [(3, 17)], (3, 17), {"alg": "accurate", "axis": 1}),
    "reduction": ("reduction", [(3, 17)], (1, 17), {"alg": "mean", "p": 1.0, "epsilon": 0.0}),
}


@pytest.mark.parametrize("result", ["float32", "uint8"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds(name, result):
    """They have no such attributes in oneDNN: their operands are converted."""
    kind, shapes, out, attrs = OTHERS[name]
    case = Scaled()
    ids = [
        case.operand(case.bytes(shape, "int8", False), case.scaling("int8", "each", "one", len(shape) - 1, shape[-1]))
        for shape in shapes
    ]
    scaling = case.scaling("uint8", "one", "one") if result == "uint8" else None
    case.g.outputs = [case.g.node(kind, ids, out, result, scaling=scaling, **attrs)]
    case.check()


#: shape of the source, dtypes of source and result; the last axis ends within a vector, at its end, behind two panels
ROWS = [
    ((3, 17), "uint8", "int8"),
    ((2, 5, 64), "int8", "uint8"),
    ((7, 1), "uint8", "uint8"),
    ((40, 197), "int8", "int8"),
]


def normalized(kind: str, shape: tuple, source: str, result: str, worst: bool, axis: int = -1) -> Scaled:
    """A softmax or layer norm from bytes to bytes."""
    case = Scaled(sum(shape) + 1)
    own = case.scaling(source, "one", "" if worst else "one")
    ids = [case.operand(case.bytes(shape, source, worst), own)]
    attrs: dict[str, Any] = {"alg": "accurate", "axis": axis % len(shape)}
    if kind == "layer_normalization":
        attrs = {"epsilon": 1e-5}
        ids += [case.g.constant(case.rng.uniform(-2, 2, shape[-1]).astype("float32")) for _ in range(2)]
    scaling = case.scaling(result, "one", "one")
    case.g.outputs = [case.g.node(kind, ids, shape, result, scaling=scaling, **attrs)]
    return case


@pytest.mark.parametrize("worst", [False, True], ids=["random", "extremes"])
@pytest.mark.parametrize(("shape", "source", "result"), ROWS)
@pytest.mark.parametrize("kind", ["softmax", "layer_normalization"])
def test_normalisation_of_bytes(kind, shape, source, result, worst):
    case = normalized(kind, shape, source, result, worst)
    is_ours = "normalize:" in probe(case.g)["nodes"][0]["impl"]
    assert is_ours == ("zero_point" not in case.g.nodes[0]["inputs"][0]), probe(case.g)
    case.check()


def test_a_softmax_of_bytes_along_another_axis_is_not_ours():
    case = normalized("softmax", (5, 6, 7), "uint8", "uint8", worst=True, axis=1)
    assert "normalize:" not in probe(case.g)["nodes"][0]["impl"]
    case.check()


@pytest.mark.parametrize("kind", ["softmax", "layer_normalization"])
def test_normalisation_of_bytes_as_source(kind, tmp_path):
    case = normalized(kind, (9, 33), "uint8", "uint8", worst=True)
    (got,), (want,) = run_emitted(case.g, case.arguments, tmp_path), execute(case.g, case.arguments)
    np.testing.assert_array_equal(got, want)


def lookup(shape: tuple, source: str, result: str, axes: tuple = ()) -> Scaled:
    """A table of random results; behind a permutation where there are axes."""
    case = Scaled(len(shape))
    low, high = RANGES[result]
    table = case.rng.integers(low, high + 1, 256)
    value = case.operand(case.bytes(shape, source, False), {})
    if axes:
        shape = tuple(shape[a] for a in axes)
        value = case.g.node("permute", [value], shape, source, axes=list(axes))
    case.g.outputs = [case.g.node("lookup", [value], shape, result, table=table.tolist())]
    return case


@pytest.mark.parametrize("result", ["int8", "uint8"])
@pytest.mark.parametrize("source", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 5), ()), ((2, 300, 77), ()), ((2, 5, 6, 9), (0, 2, 3, 1)), ((0, 4), ())]
)
def test_lookup(shape, axes, source, result):
    case = lookup(shape, source, result, axes)
    (got,), (want,) = execute(case.g, case.arguments), case.g.evaluate(case.arguments)
    np.testing.assert_array_equal(got, want)


def test_lookup_as_source(tmp_path):
    case = lookup((5, 33), "int8", "int8")
    (got,), (want,) = run_emitted(case.g, case.arguments, tmp_path), execute(case.g, case.arguments)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("dtypes", "table", "message"),
    [
        (("uint8", "uint8"), [0] * 255, "`table` has 255 numbers, expected 256"),
        (("uint8", "uint8"), [256] * 256, "`table` has 256, expected at most 255"),
        (("uint8", "int8"), [-129] * 256, r"out of \[-128"),
        (("float32", "uint8"), [0] * 256, "a source and an output int8 or uint8"),
        (("uint8", "int32"), [0] * 256, "a source and an output int8 or uint8"),
    ],
)
def test_a_wrong_table(dtypes, table, message):
    g = GraphBuilder()
    g.outputs = [g.node("lookup", [g.input((3, 5), dtypes[0])], (3, 5), dtypes[1], table=table)]
    with pytest.raises(GraphError, match=message):
        probe(g)


def test_a_lookup_of_scaled_bytes_is_refused():
    case = Scaled()
    x = case.operand(case.bytes((3, 5), "uint8", False), case.scaling("uint8", "one", ""))
    case.g.outputs = [case.g.node("lookup", [x], (3, 5), "uint8", table=[0] * 256)]
    report = probe(case.g)
    assert not report["ok"]
    assert "a lookup takes no scales" in report["reason"], report


def test_weights_alone_carry_a_scale():
    """Their product with float32 is one of float32; constant weights are converted once."""
    case = Scaled()
    x = case.operand(case.rng.standard_normal((3, 40)).astype("float32"), {})
    w = case.operand(case.bytes((40, 9), "int8", False), case.scaling("int8", "each", "one", 1, 9), constant=True)
    case.g.outputs = [case.g.node("matmul", [x, w], (3, 9))]
    assert probe(case.g)["reorders"] == 0
    case.check()


def test_scales_computed_at_run_time():
    """As of a dynamic quantisation: the scale of the source follows from its values."""
    case = Scaled()
    scale = case.g.input((1,))
    double = case.g.node("binary", [scale, scale], (1,), alg="add")
    case.arguments.append(np.array([0.03], "float32"))
    x = case.operand(case.bytes((5, 33), "uint8", False), {"scale": double, **case.scaling("uint8", "", "one")})
    w = case.operand(case.bytes((33, 9), "int8", False), {"scale": scale}, constant=True)
    case.g.outputs = [case.g.node("matmul", [x, w], (5, 9))]
    case.check()


def test_a_full_size_scale_that_is_also_added():
    """The sum is not computed over the memory of the scale."""
    case = Scaled()
    scale = case.g.input((9,))
    case.arguments.append(case.rng.uniform(0.5, 2, 9).astype("float32"))
    twice = case.g.node("binary", [scale, scale], (9,), alg="add")
    row = case.g.node("reshape", [twice], (1, 9))
    x = case.operand(case.bytes((1, 33), "uint8", False), {})
    w = case.operand(case.bytes((33, 9), "int8", False), {"scale": twice, "axis": 1}, constant=True)
    post_ops = [{"kind": "binary", "alg": "add", "input": 2}]
    case.g.outputs = [case.g.node("matmul", [x, w, row], (1, 9), post_ops=post_ops)]
    case.check()


def _malformed() -> dict[str, tuple[Any, str]]:
    def scaled(operand: dict[str, int], kind: str = "matmul", out: tuple = (5, 9), **attrs: Any) -> GraphBuilder:
        g = GraphBuilder()
        x, w = g.input((5, 33), "uint8"), g.input((33, 9), "int8")
        one, nine = g.constant(np.ones(1, "float32")), g.constant(np.ones(9, "float32"))
        point = g.constant(np.ones(1, "int32"))
        ids = {"one": one, "nine": nine, "point": point}
        wanted = {name: ids.get(value, value) for name, value in operand.items()}
        inputs: list[Any] = [x, {"tensor": w, **wanted}] if kind == "matmul" else [{"tensor": x, **wanted}]
        g.outputs = [g.node(kind, inputs, out, "float32" if kind == "matmul" else "uint8", **attrs)]
        return g

    return {
        "nothing": (scaled({"axis": 1}), "expected a scale or a zero_point"),
        "dtype": (scaled({"scale": "point"}), r"scale of the input 1 is int32\[1\], expected float32\[1\]"),
        "point": (scaled({"zero_point": "one"}), r"zero_point of the input 1 is float32\[1\], expected int32\[1\]"),
        "count": (scaled({"scale": "nine"}), r"is float32\[9\], expected float32\[1\]"),
        "axis": (scaled({"scale": "nine", "axis": 0}), r"is float32\[9\], expected float32\[1\] or \[33\]"),
        "no_axis": (scaled({"scale": "nine", "axis": 2}), r"axis 2 of the input 1 is not in \[0, 2\)"),
        "negative": (scaled({"scale": "nine", "axis": -1}), "axis -1 is negative"),
        "id": (scaled({"scale": 99}), "99 is out of range"),
        "field": (scaled({"scale": "one", "mask": 1}), 'unknown field "mask"'),
        "moved": (scaled({"scale": "one"}, "reshape", (33, 5)), "it moves elements as they are: input 0 is scaled"),
    }


@pytest.mark.parametrize("name", _malformed())
def test_malformed(name):
    g, message = _malformed()[name]
    with pytest.raises(GraphError, match=message):
        probe(g)


_REFUSED = """
from tests.unit.test_native_scales import PRODUCTS, ROWS, normalized, probe, product
for kind in ("softmax", "layer_normalization"):
    for shape, source, result in ROWS:
        normalized(kind, shape, source, result, worst=True).check()
for name in PRODUCTS:
    for carried, result in (("zero_point", "int32"), ("channels", "float32"), ("all", "int8")):
        case = product(name, "uint8", carried, result, worst=True)
        report = probe(case.g)
        if name == "deconvolution" and result == "int32":  # our kernel has none whose windows overlap
            assert not report["ok"], name
            assert "no exact product of integers" in report["reason"], report
            assert "is not used: sums of 8-bit products are not exact" in report["reason"], report
        else:
            assert report["ok"], report
            case.check()
"""


def test_products_of_bytes_are_exact_or_refused_without_vnni():
    """oneDNN's sums saturate there: our kernel takes its place, and what it lacks is refused or computed in float32."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", _REFUSED], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "carried"), [("convolution", "channels"), ("grouped", "all"), ("matmul", "all")])
def test_emitted_source(name, carried, tmp_path):
    case = product(name, "uint8", carried, "int8")
    (got,), (want,) = run_emitted(case.g, case.arguments, tmp_path), execute(case.g, case.arguments)
    np.testing.assert_array_equal(got, want)
