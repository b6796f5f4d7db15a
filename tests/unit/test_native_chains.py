"""Nodes between convolutions, whose layouts they must take and hand on, with post-ops and in-place results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.isa import isa
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import RELU, check, probe, window
from tvm_byoc_dnnl.core import _native

pytestmark = pytest.mark.native


class Chain:
    """convolution -> the node under test -> 1x1 convolution, on [2, C, 9, 9]."""

    def __init__(self, channels: int) -> None:
        self.rng = np.random.default_rng(0)
        self.channels = channels
        self.shape = (2, channels, 9, 9)
        self.g = GraphBuilder()
        self.x = self.g.input(self.shape)
        self.y = self.conv(self.x)

    def const(self, *shape: int, positive: bool = False) -> int:
        value = self.rng.random(shape) + 0.5 if positive else self.rng.standard_normal(shape)
        return self.g.constant(value.astype("float32"))

    def conv(self, src: int, *extra: int, kernel: int = 3, post_ops=()) -> int:
        _, channels, height, width = self.g.tensors[src]["shape"]
        weights = (self.rng.standard_normal((self.channels, channels, kernel, kernel)) / channels).astype("float32")
        out = (2, self.channels, height, width)
        attrs = window(2, pad=kernel // 2)
        return self.g.node("convolution", [src, self.g.constant(weights), *extra], out, post_ops=post_ops, **attrs)

    def check(self, result: int, tolerance: float = 1e-3) -> None:
        if len(self.g.tensors[result]["shape"]) == 4 and self.g.tensors[result]["shape"][0] == 2:
            result = self.conv(result, kernel=1)
        self.g.outputs = [result]
        check(self.g, [self.rng.standard_normal(self.shape).astype("float32")], tolerance)


def add(position: int) -> dict:
    return {"kind": "binary", "alg": "add", "input": position}


def mul(position: int) -> dict:
    return {"kind": "binary", "alg": "mul", "input": position}


def _se(c: Chain) -> int:
    gate = [{"kind": "eltwise", "alg": "logistic", "alpha": 0.0, "beta": 0.0}]
    pooled = (2, c.channels, 1, 1)
    mean = c.g.node("reduction", [c.y], pooled, post_ops=gate, alg="mean", p=1.0, epsilon=0.0)
    return c.g.node("binary", [c.y, mean], c.shape, alg="mul")


def _split_and_join(c: Chain) -> int:
    half = c.channels // 2
    parts = []
    for begin, size in ((half, c.channels - half), (0, half)):
        attrs = {"begin": [0, begin, 0, 0], "steps": [1, 1, 1, 1]}
        parts.append(c.g.node("slice", [c.y], (2, size, 9, 9), **attrs))
    parts[0] = c.g.node("eltwise", parts[:1], (2, c.channels - half, 9, 9), alg="tanh", alpha=0.0, beta=0.0)
    return c.g.node("concat", parts, c.shape, axis=1)


def _norm_of_parts(c: Chain) -> int:
    sources = [c.y, c.conv(c.y), c.x]  # of the network's input, whose channels are not innermost, too
    statistics = [c.const(3 * c.channels, positive=True) for _ in range(4)]
    shape = (2, 3 * c.channels, 9, 9)
    return c.g.node("batch_normalization", [sources[0], *statistics, *sources[1:]], shape, post_ops=RELU, epsilon=1e-3)


NODES = {
    "eltwise": lambda c: c.g.node("eltwise", [c.y], c.shape, alg="relu", alpha=0.0, beta=0.0),
    "binary": lambda c: c.g.node("binary", [c.y, c.x], c.shape, alg="add"),
    "binary_plain_first": lambda c: c.g.node("binary", [c.x, c.y], c.shape, alg="sub"),
    "binary_same": lambda c: c.g.node("binary", [c.y, c.y], c.shape, alg="mul"),
    "binary_channels": lambda c: c.g.node("binary", [c.y, c.const(1, c.channels, 1, 1)], c.shape, alg="mul"),
    "binary_pixels": lambda c: c.g.node("binary", [c.const(1, 1, 9, 9), c.y], c.shape, alg="sub"),
    "pooling": lambda c: c.g.node(
        "pooling", [c.y], (2, c.channels, 5, 5), alg="max", kernel=[3, 3], **window(2, 2, pad=1)
    ),
    "global_mean": lambda c: c.g.node("reduction", [c.y], (2, c.channels, 1, 1), alg="mean", p=1.0, epsilon=0.0),
    "global_sum": lambda c: c.g.node("reduction", [c.y], (2, c.channels, 1, 1), alg="sum", p=1.0, epsilon=0.0),
    "mean_of_channels": lambda c: c.g.node("reduction", [c.y], (2, 1, 9, 9), alg="mean", p=1.0, epsilon=0.0),
    "softmax": lambda c: c.g.node("softmax", [c.y], c.shape, alg="accurate", axis=1),
    "softmax_last": lambda c: c.g.node("softmax", [c.y], c.shape, alg="accurate", axis=3),
    "batch_normalization": lambda c: c.g.node(
        "batch_normalization", [c.y, *(c.const(c.channels, positive=True) for _ in range(4))], c.shape, epsilon=1e-3
    ),
    "batch_normalization_of_parts": _norm_of_parts,
    "layer_normalization": lambda c: c.g.node(
        "layer_normalization", [c.y, c.const(9), c.const(9)], c.shape, epsilon=1e-3
    ),
    "rms_normalization": lambda c: c.g.node("rms_normalization", [c.y, c.const(9)], c.shape, epsilon=1e-3),
    "lrn": lambda c: c.g.node("lrn", [c.y], c.shape, alg="across_channels", local_size=5, alpha=0.1, beta=0.75, k=1.0),
    "resampling": lambda c: c.g.node("resampling", [c.y], (2, c.channels, 18, 18), alg="nearest"),
    "concat": lambda c: c.g.node("concat", [c.y, c.x], (2, 2 * c.channels, 9, 9), axis=1),
    "concat_same": lambda c: c.g.node("concat", [c.y, c.y], (2, 2 * c.channels, 9, 9), axis=1),
    "permute": lambda c: c.g.node("permute", [c.y], (9, 2, 9, c.channels), axes=[2, 0, 3, 1]),
    "reshape": lambda c: c.g.node("reshape", [c.y], (2, c.channels * 81)),
    "reshape_pixels": lambda c: c.g.node("reshape", [c.y], (2, c.channels, 81)),
    "slice_pixels": lambda c: c.g.node(
        "slice", [c.y], (2, c.channels - 4, 4, 7), begin=[0, 3, 1, 2], steps=[1, 1, 2, 1]
    ),
    "split_and_join": _split_and_join,
    "pad": lambda c: c.g.node(
        "pad", [c.y], (2, c.channels + 1, 10, 11), pad_begin=[0, 0, 1, 1], pad_end=[0, 1, 0, 1], value=1.5
    ),
    "prelu": lambda c: c.g.node("prelu", [c.y, c.const(1, c.channels, 1, 1)], c.shape),
    "expand": lambda c: c.g.node(
        "expand", [c.g.node("reduction", [c.y], (2, c.channels, 1, 1), alg="max", p=1.0, epsilon=0.0)], c.shape
    ),
    "squeeze_and_excite": _se,
    "shuffle": lambda c: c.g.node("shuffle", [c.y], c.shape, axis=1, group_size=c.channels if c.channels % 2 else 2),
    "x_sigmoid_x": lambda c: c.g.node(
        "eltwise", [c.y, c.y], c.shape, post_ops=[mul(1)], alg="logistic", alpha=0.0, beta=0.0
    ),
    "conv_odd_broadcast": lambda c: c.conv(c.y, c.const(2, 1, 9, 1), post_ops=[mul(2), *RELU]),
    "pooling_post_ops": lambda c: c.g.node(
        "pooling", [c.y, c.x], c.shape, post_ops=[mul(1), *RELU], alg="max", kernel=[3, 3], **window(2, pad=1)
    ),
    "softmax_post_ops": lambda c: c.g.node(
        "softmax", [c.y, c.x], c.shape, post_ops=[mul(1), *RELU], alg="accurate", axis=1
    ),
    "reshape_post_ops": lambda c: c.g.node("reshape", [c.y, c.y], c.shape, post_ops=[*RELU, mul(1)]),
    "norm_post_ops": lambda c: c.g.node(
        "batch_normalization",
        [c.y, *(c.const(c.channels, positive=True) for _ in range(4)), c.y],
        c.shape,
        post_ops=[add(5), *RELU],
        epsilon=1e-3,
    ),
}


@pytest.mark.parametrize("channels", [7, 16, 20, 64])
@pytest.mark.parametrize("node", NODES)
def test_between_convolutions(node, channels):
    chain = Chain(channels)
    chain.check(NODES[node](chain))


@pytest.mark.parametrize("channels", [7, 64])
@pytest.mark.parametrize("blocks", [1, 3])
def test_residuals(channels, blocks):
    c = Chain(channels)
    y = c.y
    for _ in range(blocks):
        y = c.conv(c.conv(y, post_ops=RELU), y, post_ops=[add(2), *RELU])
    c.check(y)


def test_residual_is_summed_in_place():
    c = Chain(64)
    # behind a sigmoid, since some kernels compute the sum alone, and these always list its operand
    sigmoid = {"kind": "eltwise", "alg": "logistic", "alpha": 0.0, "beta": 0.0}
    c.g.outputs = [c.conv(c.conv(c.conv(c.y), c.y, kernel=1, post_ops=[add(2), sigmoid]))]
    steps = describe(c.g)["steps"]
    # A binary post-op would be a fourth layout: source, weights, operand, result.
    residual = [step for step in steps if step["kind"] == "convolution" and step["node"] == 2]
    assert [len(step["layouts"]) for step in residual] == [3]
    c.check(c.g.outputs[0])


def test_operand_that_lives_on_is_not_overwritten():
    c = Chain(64)
    first = c.conv(c.conv(c.y), c.y, post_ops=[add(2)])
    c.check(c.g.node("binary", [first, c.y], c.shape, alg="mul"))


def test_operand_that_is_the_source_is_not_overwritten():
    c = Chain(64)
    c.check(c.conv(c.y, c.y, post_ops=[add(2), *RELU]))


def test_input_and_constant_operands_are_not_overwritten():
    c = Chain(16)
    x = c.rng.standard_normal(c.shape).astype("float32")
    constant = c.const(*c.shape)
    c.g.outputs = [c.conv(c.conv(c.y, c.x, post_ops=[add(2)]), constant, post_ops=[add(2)])]
    kept, value = x.copy(), c.g.values[-2 if c.g.values[-1].ndim == 4 else -1].copy()
    for _ in range(2):
        check(c.g, [x], 1e-3)
    np.testing.assert_array_equal(x, kept)
    assert any(np.array_equal(value, v) for v in c.g.values)


def test_outputs_of_all_sorts():
    """An intermediate, a view of it, the same twice, an input and a constant."""
    c = Chain(16)
    flat = c.g.node("reshape", [c.y], (2, 16 * 81))
    relu = c.g.node("eltwise", [c.y], c.shape, alg="relu", alpha=0.0, beta=0.0)
    constant = c.const(3, 5)
    c.g.outputs = [c.y, flat, relu, relu, c.x, constant]
    check(c.g, [c.rng.standard_normal(c.shape).astype("float32")], 1e-3)


def test_nodes_of_constants_run_once():
    c = Chain(16)
    scaled = c.g.node("binary", [c.const(1, 16, 1, 1), c.const(1, 16, 1, 1)], (1, 16, 1, 1), alg="mul")
    whole = c.g.node("expand", [scaled], c.shape)
    c.g.outputs = [c.g.node("binary", [c.y, whole], c.shape, alg="add")]
    assert {step["node"] for step in describe(c.g)["steps"]} <= {0, 3, 4}
    c.check(c.g.outputs[0])


def test_convolution_writes_the_callers_channels_last_output():
    c = Chain(64)
    c.g.outputs = [c.g.node("permute", [c.y], (2, 9, 9, 64), axes=[0, 2, 3, 1])]
    steps = describe(c.g)["steps"]
    assert steps[-1]["kind"] == "convolution"
    check(c.g, [c.rng.standard_normal(c.shape).astype("float32")], 1e-3)


def test_shuffle_by_views_moves_data_once():
    """reshape, permute, reshape on a convolution's channels-last result: one copy, and no way back to row-major."""
    c = Chain(64)
    split = c.g.node("reshape", [c.y], (2, 4, 16, 9, 9))
    swapped = c.g.node("permute", [split], (2, 16, 4, 9, 9), axes=[0, 2, 1, 3, 4])
    shuffled = c.g.node("reshape", [swapped], c.shape)
    c.g.outputs = [c.conv(shuffled, kernel=1)]
    between = [s for s in describe(c.g)["steps"] if s["kind"] == "reorder" and s["node"] in (1, 2, 3, 4)]
    assert len(between) == (3 if isa() in ("sse41", "avx") else 1)  # there the convolutions have blocks of channels
    c.check(shuffled)


def test_concat_keeps_channels_last():
    """A plain source among channels-last ones is reordered, not the others; they may be in their place already."""
    c = Chain(64)
    small = c.g.node("slice", [c.x], (2, 8, 9, 9), begin=[0, 0, 0, 0], steps=[1, 1, 1, 1])
    joined = c.g.node("concat", [c.y, small], (2, 72, 9, 9), axis=1)
    c.g.outputs = [c.conv(joined, kernel=1)]
    steps = describe(c.g)["steps"]
    joining = [step["layouts"] for step in steps if step["node"] == 2]
    if any(step["kind"] == "concat" for step in steps):
        orders = {layout.split(":")[1] for layout in joining[-1]}
        assert len(orders) == 1
        assert orders != {"abcd"}
    else:
        assert joining == [["f32:abcd:2x8x9x9", "f32:acdb:2x8x9x9"]]
    c.check(joined)


def test_attention():
    rng = np.random.default_rng(0)
    batch, length, heads, width = 2, 7, 3, 8
    g = GraphBuilder()
    rows = (batch, length, heads * width)
    x = g.input(rows)

    def project() -> int:
        weights = g.constant((rng.standard_normal((1, heads * width, heads * width)) / 5).astype("float32"))
        split = g.node("reshape", [g.node("matmul", [x, weights], rows)], (batch, length, heads, width))
        return g.node("permute", [split], (batch, heads, length, width), axes=[0, 2, 1, 3])

    query, key, value = project(), project(), project()
    key = g.node("permute", [key], (batch, heads, width, length), axes=[0, 1, 3, 2])
    scale = [{"kind": "eltwise", "alg": "linear", "alpha": width**-0.5, "beta": 0.0}]
    square = (batch, heads, length, length)
    scores = g.node("softmax", [g.node("matmul", [query, key], square, post_ops=scale)], square, alg="accurate", axis=3)
    mixed = g.node("matmul", [scores, value], (batch, heads, length, width))
    g.outputs = [
        g.node("reshape", [g.node("permute", [mixed], (batch, length, heads, width), axes=[0, 2, 1, 3])], rows)
    ]
    assert probe(g)["ok"]
    check(g, [rng.standard_normal(rows).astype("float32")], 1e-3)


def describe(g: GraphBuilder) -> dict:
    """The plan of a static graph."""
    import json

    import tvm_ffi

    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())
    module[f"__init_{g.name}"]([tvm_ffi.from_dlpack(v) for v in g.values])
    return json.loads(module["describe"]())
