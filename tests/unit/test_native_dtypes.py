"""The narrow dtypes, fed by conversions from float32: bfloat16, float16 and 8-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.isa import multiplies_bytes
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import check, probe, window

pytestmark = pytest.mark.native

CONV = {"shapes": [(1, 16, 9, 9), (32, 16, 3, 3), (32,)], "out": (1, 32, 9, 9), **window(2, pad=1)}
DEPTHWISE = {"shapes": [(1, 32, 9, 9), (32, 1, 1, 3, 3), (32,)], "out": (1, 32, 9, 9), **window(2, pad=1)}
POOL = {"shapes": [(1, 16, 9, 9)], "out": (1, 16, 5, 5), "kernel": [3, 3], **window(2, stride=2, pad=1)}
LINEAR = {"shapes": [(5, 64), (64, 32), (1, 32)], "out": (5, 32)}
BATCHED = {"shapes": [(2, 5, 64), (2, 64, 32)], "out": (2, 5, 32), "runtime": True}
ROWS = {"shapes": [(3, 17)], "out": (3, 17)}
PAIR = {"shapes": [(3, 17), (1, 17)], "out": (3, 17), "runtime": True}
NORM = {"shapes": [(3, 17), (17,), (17,)], "out": (3, 17), "epsilon": 1e-5}
IMAGE = {"shapes": [(1, 16, 3, 3)], "out": (1, 16, 3, 3)}
RELU = {"alg": "relu", "alpha": 0.0, "beta": 0.0}
MEAN = {"shapes": [(1, 16, 3, 3)], "alg": "mean", "p": 1.0, "epsilon": 0.0}

# Kinds that move data and compute nothing.
MOVES = ("concat", "pad", "expand", "permute")

# kind, dtypes of the inputs ("." stands for the one under test) and of the result, the rest
SHORT_FLOATS = [
    ("convolution", [".", ".", "float32"], ".", CONV),
    ("convolution", [".", ".", "float32"], "float32", CONV),
    ("convolution", [".", ".", "."], ".", DEPTHWISE),
    ("deconvolution", [".", "."], ".", {**CONV, "shapes": CONV["shapes"][:2]}),
    ("matmul", [".", ".", "float32"], ".", LINEAR),
    ("matmul", [".", "."], "float32", {**LINEAR, "shapes": LINEAR["shapes"][:2]}),
    ("matmul", [".", "."], ".", BATCHED),
    ("pooling", ["."], ".", {**POOL, "alg": "max"}),
    ("pooling", ["."], ".", {**POOL, "alg": "avg_exclude_padding"}),
    ("eltwise", ["."], ".", {**ROWS, **RELU}),
    ("eltwise", ["."], ".", {**ROWS, "alg": "gelu_erf", "alpha": 0.0, "beta": 0.0}),
    ("binary", [".", "."], ".", {**PAIR, "alg": "add"}),
    ("binary", [".", "float32"], ".", {**PAIR, "alg": "mul"}),
    ("softmax", ["."], ".", {**ROWS, "alg": "accurate", "axis": 1}),
    ("softmax", ["."], "float32", {**ROWS, "alg": "accurate", "axis": 1}),
    ("layer_normalization", [".", "float32", "float32"], ".", NORM),
    ("layer_normalization", [".", ".", "."], ".", NORM),
    ("reduction", ["."], ".", {**MEAN, "out": (1, 16, 1, 1)}),
    ("reduction", ["."], ".", {**MEAN, "out": (1, 1, 3, 3)}),
    ("concat", [".", "."], ".", {"shapes": [(1, 16, 3, 3), (1, 4, 3, 3)], "out": (1, 20, 3, 3), "axis": 1}),
    ("resampling", ["."], ".", {"shapes": [(1, 16, 3, 3)], "out": (1, 16, 6, 6), "alg": "linear"}),
    ("prelu", [".", "float32"], ".", {"shapes": [(1, 16, 3, 3), (1, 16, 1, 1)], "out": (1, 16, 3, 3)}),
    ("pad", ["."], ".", {"shapes": [(3, 5)], "out": (6, 6), "pad_begin": [1, 1], "pad_end": [2, 0], "value": 2.7}),
    ("expand", ["."], ".", {"shapes": [(1, 5)], "out": (6, 5)}),
    ("permute", ["."], ".", {"shapes": [(2, 5)], "out": (5, 2), "axes": [1, 0]}),
    ("lrn", ["."], ".", {**IMAGE, "alg": "across_channels", "local_size": 5, "alpha": 0.1, "beta": 0.75, "k": 1.0}),
]  # fmt: skip
BYTES = [
    ("convolution", [".", "int8", "float32"], "float32", CONV),
    ("convolution", [".", "int8"], "int32", {**CONV, "shapes": CONV["shapes"][:2]}),
    ("matmul", [".", "int8"], "float32", {**LINEAR, "shapes": LINEAR["shapes"][:2]}),
    ("matmul", [".", "int8"], "int32", {**LINEAR, "shapes": LINEAR["shapes"][:2]}),
    ("matmul", [".", "int8"], "float32", BATCHED),
    ("pooling", ["."], ".", {**POOL, "alg": "max"}),
    ("eltwise", ["."], ".", {**ROWS, **RELU}),
    ("binary", [".", "."], ".", {**PAIR, "alg": "max"}),
    ("binary", [".", "."], "bool", {**PAIR, "alg": "gt"}),
    ("concat", [".", "."], ".", {"shapes": [(1, 16, 3, 3), (1, 4, 3, 3)], "out": (1, 20, 3, 3), "axis": 1}),
    ("pad", ["."], ".", {"shapes": [(3, 5)], "out": (6, 6), "pad_begin": [1, 1], "pad_end": [2, 0], "value": 3.0}),
]


def converted(dtype: str, kind: str, dtypes: list[str], out_dtype: str, spec: dict[str, Any]):
    """float32 inputs -> the node's dtypes -> the node -> float32; all but the first input are constants."""
    rng = np.random.default_rng(0)
    attrs = dict(spec)
    shapes, out, runtime = attrs.pop("shapes"), attrs.pop("out"), attrs.pop("runtime", False)
    g, ids, arguments = GraphBuilder(), [], []
    for i, (shape, wanted) in enumerate(zip(shapes, dtypes, strict=False)):
        wanted = dtype if wanted == "." else wanted
        value = rng.standard_normal(shape).astype("float32")
        if wanted in ("int8", "uint8"):
            value = np.clip(np.rint(20 * value), 0 if wanted == "uint8" else -128, 127).astype("float32")
        if i == 0 or runtime:
            ids.append(g.input(shape))
            arguments.append(value)
        else:
            ids.append(g.constant(value))
        if wanted != "float32":
            ids[-1] = g.node("reorder", [ids[-1]], shape, wanted)
    out_dtype = dtype if out_dtype == "." else out_dtype
    result = g.node(kind, ids, out, out_dtype, **attrs)
    g.outputs = [result if out_dtype == "float32" else g.node("reorder", [result], out)]
    return g, arguments


def is_computed(dtype: str, kind: str) -> bool:
    """Whether oneDNN has an implementation for the dtype: for a node that only moves data it has one everywhere."""
    if kind in MOVES:
        return True
    if dtype in ("bfloat16", "float16"):
        return True  # in float32 where oneDNN has none of it
    return multiplies_bytes(kind) or kind not in ("convolution", "deconvolution", "matmul")


def check_or_refusal(dtype: str, case: Any, tolerance: float) -> None:
    """The node is right, or refused on an instruction set that has not its dtype: never wrong, and never slow."""
    g, arguments = converted(dtype, *case)
    if is_computed(dtype, case[0]):
        assert probe(g)["ok"], probe(g)["reason"]
        check(g, arguments, tolerance=tolerance)
    else:
        assert not probe(g)["ok"]
        assert f"{case[0]} " in probe(g)["reason"] and "oneDNN has no implementation" in probe(g)["reason"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", SHORT_FLOATS, ids=lambda c: f"{c[0]}-{''.join(d[0] for d in c[1])}-{c[2]}")
def test_short_floats(dtype, case):
    check_or_refusal(dtype, case, tolerance=2e-2)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("case", BYTES, ids=lambda c: f"{c[0]}-{c[2]}")
def test_bytes(dtype, case):
    check_or_refusal(dtype, case, tolerance=1e-5)


@pytest.mark.parametrize("value", [("uint8", 255), ("int8", 127), ("int8", -128)], ids=lambda v: f"{v[0]}-{v[1]}")
@pytest.mark.parametrize("weight", [127, -128])
@pytest.mark.parametrize(
    ("kind", "shapes", "out", "attrs"),
    [
        ("convolution", [(1, 16, 9, 9), (32, 16, 3, 3)], (1, 32, 9, 9), window(2, pad=1)),
        ("convolution", [(1, 32, 9, 9), (32, 1, 1, 3, 3)], (1, 32, 9, 9), window(2, pad=1)),
        ("deconvolution", [(1, 16, 9, 9), (32, 16, 3, 3)], (1, 32, 9, 9), window(2, pad=1)),
        ("matmul", [(5, 64), (64, 32)], (5, 32), {}),
        ("matmul", [(2, 5, 7), (2, 7, 3)], (2, 5, 3), {}),
    ],
    ids=["convolution", "depthwise", "deconvolution", "matmul", "batched"],
)
def test_the_largest_bytes_do_not_saturate(value, weight, kind, shapes, out, attrs):
    """Two products of 8-bit integers do not fit in 16 bits, in which an instruction before VNNI adds them."""
    dtype, number = value
    g = GraphBuilder()
    x, w = g.input(shapes[0]), g.constant(np.full(shapes[1], weight, "float32"))
    ids = [g.node("reorder", [x], shapes[0], dtype), g.node("reorder", [w], shapes[1], "int8")]
    g.outputs = [g.node(kind, ids, out, **attrs)]
    assert probe(g)["ok"] == multiplies_bytes(kind)
    if multiplies_bytes(kind):
        check(g, [np.full(shapes[0], number, "float32")], tolerance=0)


def test_results_saturate_and_round_to_even():
    g = GraphBuilder()
    x = g.input((1, 5))
    g.outputs = [g.node("reorder", [g.node("reorder", [x], (1, 5), "int8")], (1, 5))]
    check(g, [np.array([[-300.0, 300.0, 0.5, 1.5, -2.5]], "float32")])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", 1e-7, 65519.0, 65520.0, 1e30, -0.1, 3.14159, 6.2e-5, 2049.0])
def test_padding_is_encoded_as_a_conversion_would(dtype, value):
    """The border is filled by our own encoding of short floats: it must agree with oneDNN's."""
    g = GraphBuilder()
    x, constant = g.input((1, 1)), g.constant(np.array([[value]], "float32"))
    narrow = g.node("reorder", [x], (1, 1), dtype)
    padded = g.node("pad", [narrow], (1, 2), dtype, pad_begin=[0, 1], pad_end=[0, 0], value=value)
    expected = g.node("reorder", [g.node("reorder", [constant], (1, 1), dtype)], (1, 1))
    g.outputs = [g.node("reorder", [padded], (1, 2)), expected]
    from tests.unit.test_native_kinds import execute

    got, want = execute(g, [np.zeros((1, 1), "float32")])
    np.testing.assert_array_equal(got[:, :1], want)
