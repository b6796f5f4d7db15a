"""Random chains of post-ops behind every primitive, in random axis orders, with operands that broadcast in any way.

oneDNN accepts some of these and computes them wrong (codegen_src/dnnl/known_faults.cc). Each chain runs twice: written
as post-ops of the primitive, and as nodes that the fusion has to fuse.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import check, execute, window
from tvm_byoc_dnnl.graph import Constant, Input, PortableGraph, Tensor
from tvm_byoc_dnnl.graph.node_list import Node, PostOp
from tvm_byoc_dnnl.patterns.dnnl.post_ops import fuse_post_ops

pytestmark = pytest.mark.native

_ELTWISE = {"relu": (0.1, 0.0), "tanh": (0.0, 0.0), "linear": (0.5, -1.0), "clip": (-1.0, 2.0), "logistic": (0.0, 0.0)}
_BINARY = ("add", "sub", "mul", "div", "max", "min")

#: kind, inputs, shape of the result and attributes of the primitive in front of a chain
Anchor = Callable[["Chain"], tuple[str, list[int], list[int], dict]]


class Chain:
    """A graph under construction, whose sources lie in a random axis order."""

    def __init__(self, seed: int, rank: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = GraphBuilder()
        self.arguments: list[np.ndarray] = []
        self.rank = rank or int(self.rng.integers(2, 6))
        batch, channels = self.pick(1, 2, 3), self.pick(1, 3, 6, 8, 16, 32)
        self.shape = [batch, channels, *(self.pick(1, 5, 7, 8) for _ in range(self.rank - 2))]

    def pick(self, *values: int) -> int:
        return int(self.rng.choice(values))

    def order(self, plain: float) -> list[int]:
        axes = np.arange(self.rank) if self.rng.random() < plain else self.rng.permutation(self.rank)
        return [int(a) for a in axes]

    def source(self, shape: list[int] | None = None) -> int:
        """An input whose axes are in some order in memory."""
        shape = shape or self.shape
        order = self.order(0.3)
        stored = [shape[a] for a in order]
        self.arguments.append(self.rng.standard_normal(stored).astype("float32"))
        return self.g.node("permute", [self.g.input(stored)], shape, axes=[order.index(i) for i in range(self.rank)])

    def weights(self, *shape: int) -> int:
        return self.g.constant((self.rng.standard_normal(shape) / 4).astype("float32"))

    def operand(self, shape: list[int]) -> int:
        """A positive tensor that broadcasts to ``shape``: per tensor, per channel, whole, or any other way."""
        channel = [1, shape[1], *[1] * (len(shape) - 2)]
        odd = [d if self.rng.random() < 0.5 else 1 for d in shape]
        own = ([1] * len(shape), channel, shape, odd, odd)[self.pick(0, 1, 2, 3, 4)]
        value = (self.rng.random(own) + 0.5).astype("float32")
        if self.rng.random() < 0.5:
            return self.g.constant(value)
        self.arguments.append(value)
        return self.g.input(own)


def _convolution(kind: str, groups: Callable[[int], int], ranks: tuple[int, ...] = (3, 4, 5)) -> Anchor:
    def make(c: Chain) -> tuple[str, list[int], list[int], dict]:
        channels, spatial = c.shape[1], c.rank - 2
        group = groups(channels)
        own = (channels // group, channels // group, *[3] * spatial)
        weights = c.weights(*own) if group == 1 else c.weights(group, *own)
        return kind, [c.source(), weights], c.shape, window(spatial, pad=1)

    make.ranks = ranks  # type: ignore[attr-defined]
    return make


def _pooling(alg: str) -> Anchor:
    def make(c: Chain) -> tuple[str, list[int], list[int], dict]:
        spatial = c.rank - 2
        return "pooling", [c.source()], c.shape, {"alg": alg, "kernel": [3] * spatial, **window(spatial, pad=1)}

    make.ranks = (3, 4, 5)  # type: ignore[attr-defined]
    return make


def _matmul(c: Chain) -> tuple[str, list[int], list[int], dict]:
    depth = c.pick(3, 8)
    left, right = [*c.shape[:-1], depth], [*[1] * (c.rank - 2), depth, c.shape[-1]]
    return "matmul", [c.source(left), c.weights(*right)], c.shape, {}


def _batched_matmul(c: Chain) -> tuple[str, list[int], list[int], dict]:
    left, right = [*c.shape[:-1], 4], [*c.shape[:-2], 4, c.shape[-1]]
    return "matmul", [c.source(left), c.source(right)], c.shape, {}


def _reduction(alg: str) -> Anchor:
    def make(c: Chain) -> tuple[str, list[int], list[int], dict]:
        axes = c.rng.random(c.rank) < 0.5
        axes[c.rank - 1] |= not axes.any()
        source = [max(d, 2) if is_reduced else d for d, is_reduced in zip(c.shape, axes, strict=True)]
        out = [1 if is_reduced else d for d, is_reduced in zip(source, axes, strict=True)]
        return "reduction", [c.source(source)], out, {"alg": alg, "p": 1.0, "epsilon": 0.0}

    return make


def _global_mean(c: Chain) -> tuple[str, list[int], list[int], dict]:
    out = [*c.shape[:2], *[1] * (c.rank - 2)]
    return "reduction", [c.source([*c.shape[:2], *[4] * (c.rank - 2)])], out, {"alg": "mean", "p": 1.0, "epsilon": 0.0}


def _softmax(last: bool) -> Anchor:
    def make(c: Chain) -> tuple[str, list[int], list[int], dict]:
        return "softmax", [c.source()], c.shape, {"alg": "accurate", "axis": c.rank - 1 if last else 1}

    return make


def _batch_norm(c: Chain) -> tuple[str, list[int], list[int], dict]:
    parameters = [c.g.constant((c.rng.random(c.shape[1]) + 0.5).astype("float32")) for _ in range(4)]
    return "batch_normalization", [c.source(), *parameters], c.shape, {"epsilon": 1e-3}


def _layer_norm(c: Chain) -> tuple[str, list[int], list[int], dict]:
    parameters = [c.weights(c.shape[-1]) for _ in range(2)]
    return "layer_normalization", [c.source(), *parameters], c.shape, {"epsilon": 1e-3}


def _resampling(c: Chain) -> tuple[str, list[int], list[int], dict]:
    out = [*c.shape[:2], *(2 * d for d in c.shape[2:])]
    return "resampling", [c.source()], out, {"alg": "nearest"}


for _make in (_global_mean, _resampling):
    _make.ranks = (3, 4, 5)  # type: ignore[attr-defined]

ANCHORS: dict[str, Anchor] = {
    "convolution": _convolution("convolution", lambda c: 1),
    "grouped": _convolution("convolution", lambda c: 2 if c % 2 == 0 else 1),
    "depthwise": _convolution("convolution", lambda c: c),
    "deconvolution": _convolution("deconvolution", lambda c: 1),
    "depthwise_deconvolution": _convolution("deconvolution", lambda c: c),
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "max_pooling": _pooling("max"),
    "average_pooling": _pooling("avg_exclude_padding"),
    "sum": _reduction("sum"),
    "max": _reduction("max"),
    "global_mean": _global_mean,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "softmax": _softmax(last=False),
    "softmax_last": _softmax(last=True),
    "resampling": _resampling,
    "binary": lambda c: ("binary", [c.source(), c.source()], c.shape, {"alg": "mul"}),
    "broadcast": lambda c: ("binary", [c.source(), c.operand(c.shape)], c.shape, {"alg": "sub"}),
    "eltwise": lambda c: ("eltwise", [c.source()], c.shape, {"alg": "tanh", "alpha": 0.0, "beta": 0.0}),
}


def _chain(name: str, seed: int) -> Chain:
    make = ANCHORS[name]
    ranks = getattr(make, "ranks", (2, 3, 4, 5))
    c = Chain(seed, int(np.random.default_rng(seed).choice(ranks)))
    kind, inputs, shape, attrs = make(c)
    post_ops = []
    for _ in range(c.pick(1, 2, 3)):
        if c.rng.random() < 0.3:
            alg = str(c.rng.choice(list(_ELTWISE)))
            alpha, beta = _ELTWISE[alg]
            post_ops.append({"kind": "eltwise", "alg": alg, "alpha": alpha, "beta": beta})
        else:
            post_ops.append({"kind": "binary", "alg": str(c.rng.choice(_BINARY)), "input": len(inputs)})
            inputs.append(c.operand(shape))
    result = c.g.node(kind, inputs, shape, post_ops=post_ops, **attrs)
    order = c.order(0.5)
    c.g.outputs = [c.g.node("permute", [result], [shape[a] for a in order], axes=order)]
    return c


def _apart(g: GraphBuilder) -> GraphBuilder:
    """The graph with a node for each post-op."""
    g = copy.deepcopy(g)
    anchor, permute = g.nodes.pop(-2), g.nodes.pop()
    post_ops, anchor["post_ops"] = anchor["post_ops"], []
    operands = anchor["inputs"]
    first = min((op["input"] for op in post_ops if op["kind"] == "binary"), default=len(operands))
    anchor["inputs"] = operands[:first]
    g.nodes.append(anchor)
    value, shape = anchor["outputs"][0], g.tensors[anchor["outputs"][0]]["shape"]
    for op in post_ops:
        if op["kind"] == "eltwise":
            value = g.node("eltwise", [value], shape, **{k: op[k] for k in ("alg", "alpha", "beta")})
        else:
            value = g.node("binary", [value, operands[op["input"]]], shape, alg=op["alg"])
    g.nodes.append({**permute, "inputs": [value]})
    return g


def _fused(g: GraphBuilder) -> GraphBuilder:
    """The graph after the fusion."""
    graph = PortableGraph(
        g.name,
        [Tensor(t["dtype"], tuple(t["shape"])) for t in g.tensors],
        [Input(tensor=i["tensor"]) for i in g.inputs],
        [Constant(c["tensor"], c["name"]) for c in g.constants],
        [Node(n["kind"], n["inputs"], n["outputs"], n["attrs"], [PostOp(**p) for p in n["post_ops"]]) for n in g.nodes],
        list(g.outputs),
    )
    value_of = {c["name"]: v for c, v in zip(g.constants, g.values, strict=True)}
    document = fuse_post_ops(graph).to_dict()
    fused = GraphBuilder(g.name)
    for key in ("tensors", "inputs", "constants", "nodes", "outputs"):
        setattr(fused, key, document[key])
    fused.values = [value_of[c["name"]] for c in fused.constants]
    return fused


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ANCHORS)
def test_chain(name: str, seed: int) -> None:
    c = _chain(name, 1000 * seed + sorted(ANCHORS).index(name))
    check(c.g, c.arguments)
    fused = _fused(_apart(c.g))
    for got, want in zip(execute(fused, c.arguments), c.g.evaluate(c.arguments), strict=True):
        assert_right(got, want.astype(got.dtype), 1e-4, least=1.0)


def _faulty(order: list[int], shape: list[int], kind: str, operands: list[list[int]], **attrs: object) -> Chain:
    """One primitive on a source whose axes lie in ``order``, with a sum of each operand behind it."""
    c = Chain(0, len(shape))
    c.shape = shape
    stored = [shape[a] for a in order]
    inputs, post_ops = [], []
    for _ in range(2 if kind == "binary" else 1):
        c.arguments.append(c.rng.standard_normal(stored).astype("float32"))
        axes = [order.index(i) for i in range(len(shape))]
        inputs.append(c.g.node("permute", [c.g.input(stored)], shape, axes=axes))
    if kind == "matmul":
        inputs.append(c.weights(*[1] * (len(shape) - 2), shape[-1], shape[-1]))
    for own in operands:
        post_ops.append({"kind": "binary", "alg": "add", "input": len(inputs)})
        inputs.append(c.g.constant((c.rng.random(own) + 0.5).astype("float32")))
    result = c.g.node(kind, inputs, shape, post_ops=post_ops, **attrs)
    c.g.outputs = [c.g.node("permute", [result], stored, axes=order)]
    return c


# One row per known fault; without the refusal each gives wrong numbers, or does not come back.
@pytest.mark.parametrize(
    ("kind", "order", "shape", "operand", "attrs"),
    [
        pytest.param("binary", [3, 1, 0, 2], [2, 16, 5, 7], [1, 16, 1, 1], {"alg": "add"}, id="binary_channel"),
        pytest.param("binary", [1, 0], [7, 16], [1, 16], {"alg": "add"}, id="binary_columns"),
        pytest.param("binary", [0, 1, 2], [16, 8, 1], [1, 8, 1], {"alg": "add"}, id="binary_no_space"),
        pytest.param("softmax", [0, 1, 2], [7, 5, 8], [1, 5, 1], {"alg": "accurate", "axis": 2}, id="softmax_plain"),
        pytest.param(
            "softmax", [0, 2, 1, 3], [2, 16, 5, 7], [1, 16, 1, 1], {"alg": "accurate", "axis": 3}, id="softmax_heads"
        ),
        pytest.param("matmul", [0, 2, 1, 3], [7, 7, 7, 7], [1, 7, 1, 1], {}, id="matmul_heads"),
        pytest.param("matmul", [1, 0, 2], [8, 8, 16], [1, 1, 16], {}, id="matmul_columns"),
        pytest.param("resampling", [0, 2, 3, 1], [2, 16, 5, 7], [2, 16, 5, 7], {"alg": "nearest"}, id="resampling"),
    ],
)
def test_known_fault(kind: str, order: list[int], shape: list[int], operand: list[int], attrs: dict) -> None:
    c = _faulty(order, shape, kind, [operand], **attrs)
    check(c.g, c.arguments)


def test_binary_whose_operand_broadcasts_in_an_unusual_order() -> None:
    c = _faulty([0, 2, 1, 3], [1, 3, 1, 7], "binary", [[1, 3, 1, 7], [1, 1, 1, 7]], alg="add")
    check(c.g, c.arguments)


def test_a_product_whose_only_row_is_delivered_in_another_order() -> None:
    """The stride of an axis of size 1 means nothing, but oneDNN's gemm fails over it, and only when it runs."""
    c = Chain(0, 4)
    c.arguments.append(c.rng.standard_normal([32, 1, 2, 3]).astype("float32"))
    left = c.g.node("permute", [c.g.input([32, 1, 2, 3])], [2, 32, 1, 3], axes=[2, 0, 1, 3])
    right = c.weights(1, 1, 3, 8)
    result = c.g.node("matmul", [left, right], [2, 32, 1, 8])
    c.g.outputs = [c.g.node("permute", [result], [32, 2, 8, 1], axes=[1, 0, 3, 2])]
    check(c.g, c.arguments)
