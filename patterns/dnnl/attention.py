"""Attention: two products and a softmax, on views of the queries, keys and values; and where the portable graph has
these as nodes of their own, they become one.

    query (B, S, H, D) ── permute (0, 2, 1, 3) ──┐
    key   (B, T, H, D) ── permute (0, 2, 3, 1) ──┴─ matmul ── · scale ── + bias ── softmax ──┐
    value (B, T, H, E) ── permute (0, 2, 1, 3) ──────────────────────────────────────────────┴─ matmul ── permute

A memory descriptor says the permutations, so nothing is copied. A causal mask is a constant bias: oneDNN has none of
its own.

    query ──────┐                                       query ─┐
    key ─ permute ─ matmul ─ · scale ─ + bias ─ softmax ─┐     key ─┼─ attention
    value ───────────────────────────────────────────── matmul   value ─┘

So Relax's own operators and what exporters write instead are one kind, and the engine chooses how to compute it. Behind
the scale, scores may be capped: softcap · tanh(score / softcap). Heads of keys that are repeated for several heads of
queries are read once.

Rotary positions before it are one node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...vendor import (
    CACHED_ATTENTION,
    GraphBuilder,
    Node,
    PortableGraph,
    Scope,
    Value,
    attributes_of,
    dtype_of,
    inputs_of,
    make_constant,
    register_lowering,
    require,
    rewrite_pass,
    static_shape,
    wanted_of,
)
from .common import FLOATS, floats, require_float, size_of
from .views import VIEWS, divisor_of, is_read_once, only_reader

_OPS = ("relax.nn.attention", "relax.nn.attention_bias")
_CACHES = (*FLOATS, "int8")
#: the inputs of the first are x, positions, cosines and sines; those of the second x, cosines, sines and positions
_ROTARY = ("onnx.com.microsoft.RotaryEmbedding", "onnx.RotaryEmbedding")


@register_lowering("dnnl", list(_OPS))
def attention(g: GraphBuilder, call: Any) -> Value:
    """Scaled dot-product attention with a bias or a causal mask, without copies of its operands."""
    query, key, value, *bias = floats(g, call)
    mask, window = call.attrs.causal_mask, call.attrs.window_size
    require(window is None, f"attention in a window of {window}")
    require(mask is None, f"attention with the causal mask {mask} of queries {query.shape} and keys {key.shape}")
    scale = 1 / math.sqrt(_width(query)) if call.attrs.scale is None else float(call.attrs.scale)
    heads, keys = g.permute(query, (0, 2, 1, 3)), g.permute(key, (0, 2, 3, 1))
    shape = (*heads.shape[:3], keys.shape[-1])
    scores = g.eltwise(g.emit("matmul", [heads, keys], shape), "linear", scale)
    for operand in bias:
        scores = g.binary("add", scores, operand, shape)
    shares = g.emit("softmax", [scores], shape, alg="accurate", axis=3)
    values = g.permute(value, (0, 2, 1, 3))
    out = g.emit("matmul", [shares, values], (*shape[:3], values.shape[-1]))
    return g.permute(out, (0, 2, 1, 3))


@register_lowering("dnnl", CACHED_ATTENTION)
def cached_attention(g: GraphBuilder, call: Any) -> tuple[Value, ...]:
    """Attention over a cache of keys and values in which each sequence has its own length, with windows and sinks."""
    query, key, value, past_key, past_value, starts, ends, _, bias, sinks = (*inputs_of(call), None, None)[:10]
    attrs = {"causal": 1, "scale": 0.0, "local_window_size": -1, "softcap": 0.0, **attributes_of(call)}
    gives = wanted_of(call)
    require(past_key is not None and past_value is not None, "attention over a cache that it does not read")
    require(bias is None, "attention over a cache with a bias")
    require(bool(attrs["causal"]), "attention over a cache that is not causal")
    require(all(gives[:3]) and len(gives) > 2, "attention over a cache that does not give the cache")
    require(not any(gives[3:]), "attention over a cache that gives its scores")
    query, starts, ends = g.value(query), g.value(starts), g.value(ends)
    require(query.dtype in FLOATS, f"attention of dtype {query.dtype}; expected one of {', '.join(FLOATS)}")
    types = call.ty.fields[1:3]
    caches = []
    for past, new, ty in zip((past_key, past_value), (key, value), types, strict=True):
        rows = [g.value(past), g.value(new)]
        for row in rows:
            require(row.dtype in _CACHES, f"attention over a cache of {row.dtype}; expected {', '.join(_CACHES)}")
        caches.append(g.emit("append", [*rows, starts, ends], g.shape_of(ty)))
    behind = [] if sinks is None else [g.cast(g.value(sinks), "float32")]
    out = g.emit(
        "cached_attention",
        [g.cast(query, "float32"), *caches, starts, *behind],
        (*query.shape[:3], caches[1].shape[3]),
        "float32",
        scale=float(attrs["scale"]) or 1 / math.sqrt(_width(query)),
        window=max(0, int(attrs["local_window_size"])),
        softcap=float(attrs["softcap"]),
    )
    return (g.cast(out, query.dtype), *caches)


@register_lowering("dnnl", list(_ROTARY))
def rotary(g: GraphBuilder, call: Any) -> Value:
    """Heads whose columns turn in pairs by the angles of their positions."""
    attrs = {"is_packed_batching": 0, "num_heads": 0, "interleaved": 0, **attributes_of(call)}
    first, *others = inputs_of(call)
    positions = others.pop(0 if call.op.name == _ROTARY[0] else 2) if len(others) > 2 else None
    x, cos, sin = (g.value(a) for a in (first, *others[:2]))
    require_float(call.op.name, x, cos, sin)
    require(x.dtype == cos.dtype == sin.dtype == "float32", "heads or angles that are not float32")
    require(not attrs["is_packed_batching"], "packed batches")
    half, width = (size_of(value.shape[-1], "an open number of columns") for value in (cos, x))
    out = x
    if x.ndim == 3:
        heads = int(attrs["num_heads"]) or width // (2 * half)
        x = g.permute(g.reshape(x, (*x.shape[:2], heads, width // heads)), (0, 2, 1, 3))
    if positions is not None:
        at = g.value(positions)
        require(at.ndim == 2 and at.dtype == "int64", f"positions of shape {at.shape}, {at.dtype}")
        cos, sin = (
            g.emit("gather", [table, at], (*at.shape, *table.shape[1:]), alg="checked", axis=0) for table in (cos, sin)
        )
    turned = g.emit("rotary", [x, cos, sin], x.shape, alg="neighbours" if attrs["interleaved"] else "halves")
    return turned if out is x else g.reshape(g.permute(turned, (0, 2, 1, 3)), out.shape)


def _width(query: Value) -> int:
    reason = f"attention whose default scale is that of width {query.shape[-1]}"
    width = size_of(query.shape[-1], reason)
    require(width > 0, reason)
    return width


# ---------------------------------------------------------------- causal masks
def _causal(scope: Scope, call: Any) -> Any:
    """The mask as a bias: -∞ where a query must not see a key."""
    mask = call.attrs.causal_mask
    query, key = (static_shape(a.ty) for a in call.args[:2])
    if mask is None or call.attrs.window_size is not None or query is None or key is None:
        return None
    rows, columns = query[1], key[1]
    if mask == "BottomRight" and columns < rows:  # the first queries would see nothing
        return None
    diagonal = columns - rows if mask == "BottomRight" else 0
    hidden = np.triu(np.full((1, 1, rows, columns), -np.inf, "float32"), diagonal + 1)
    bias = make_constant(hidden, dtype_of(call.args[0].ty))
    if len(call.args) > 3:
        bias = scope.emit(relax.op.add(call.args[3], bias))
    return relax.op.nn.attention(*call.args[:3], bias, scale=call.attrs.scale)


def CausalMasks() -> tvm.transform.Pass:
    """Causal masks of attention as constant biases, where all sizes are known."""
    return rewrite_pass("CausalMasks", {op: [_causal] for op in _OPS})


def fuse_attention(graph: PortableGraph) -> None:
    """Replace each softmax between two products by ``attention``; nothing else may read what lies between them."""
    for node in [n for n in graph.nodes if n.kind == "softmax"]:
        if (found := _match(graph, node)) is not None:
            found.replace(graph)


@dataclass
class _Attention:
    """The nodes of one attention, in order, and its operands; ``keys`` is transposed."""

    nodes: list[Node]
    query: int
    keys: int
    value: int
    bias: list[int]
    scale: float
    softcap: float
    alg: str

    def replace(self, graph: PortableGraph) -> None:
        *others, last = self.nodes
        query, of_query = _without_factor(graph, self.query)
        keys, of_keys = _without_factor(graph, self.keys)
        key, value = _rows(graph, keys, True, last), _rows(graph, self.value, False, last)
        if graph.tensors[key].shape[:-2] != graph.tensors[value].shape[:-2]:
            key, value = _rows(graph, keys, True, last, grouped=False), self.value
        last.kind = "attention"
        last.attrs = {"alg": self.alg, "scale": self.scale * of_query * of_keys, "softcap": self.softcap}
        graph.nodes.rewire(last, [query, key, value, *self.bias])
        for node in reversed(others):
            graph.nodes.remove(node)
        last.stands_for(*others)


def _match(graph: PortableGraph, softmax: Node) -> _Attention | None:
    shape = graph.tensors[softmax.outputs[0]].shape
    if len(shape) not in (3, 4) or softmax.attrs["axis"] != len(shape) - 1 or softmax.attrs["alg"] != "accurate":
        return None
    behind, alg = [], "accurate"
    last = only_reader(graph, softmax.outputs[0])
    if last is not None and _is(last, "eltwise", "relu_of_numbers"):  # shares that are NaN are 0
        behind, alg = [last], "no_nan"
        last = only_reader(graph, last.outputs[0])
    if last is None or last.kind != "matmul" or len(last.inputs) != 2:
        return None
    shares, value = last.inputs
    before = _scores(graph, softmax.inputs[0])
    if before is None or shares not in (softmax, *behind)[-1].outputs:
        return None
    nodes, bias, scale, softcap = before
    query, keys = nodes[0].inputs
    everything = [*nodes, softmax, *behind, last]
    heads = shape[:-2]
    if any(graph.tensors[t].shape[:-2] != heads for t in (query, keys, value)):
        return None
    if any(n.is_scaled or n.post_ops for n in everything):
        return None
    if any(graph.tensors[t].dtype != "float32" for n in everything for t in (*n.inputs, *n.outputs)):
        return None
    return _Attention(everything, query, keys, value, bias, scale, softcap, alg)


def _scores(graph: PortableGraph, tensor: int) -> tuple[list[Node], list[int], float, float] | None:
    """The product behind the scores with what scales it and is added to it, the bias, the scale and the softcap."""
    node = _only_producer(graph, tensor)
    if node is not None and _is(node, "binary", "add"):
        for inner, bias in (node.inputs, node.inputs[::-1]):
            found = _scaled(graph, inner)
            if found is not None and graph.tensors[inner].shape == graph.tensors[tensor].shape and inner != bias:
                return [*found[0], node], [bias], *found[1:]
        return None
    found = _scaled(graph, tensor)
    return None if found is None else (found[0], [], *found[1:])


def _scaled(graph: PortableGraph, tensor: int) -> tuple[list[Node], float, float] | None:
    """The product, and what multiplies it; perhaps as softcap · tanh(scores / softcap)."""
    (node, behind, scale), softcap = _factors(graph, tensor), 0.0
    if node is not None and _is(node, "eltwise", "tanh") and scale > 0:
        softcap, capped = scale, [node, *behind]
        node, behind, scale = _factors(graph, node.inputs[0])
        behind, scale = [*behind, *capped], scale * softcap
    if node is None or node.kind != "matmul" or len(node.inputs) != 2:
        return None
    return [node, *behind], scale, softcap


def _factors(graph: PortableGraph, tensor: int) -> tuple[Node | None, list[Node], float]:
    """What computes a tensor but for the numbers that multiply it, the nodes of these, and their product."""
    node, scale = _only_producer(graph, tensor), 1.0
    behind: list[Node] = []
    while node is not None and (factor := _factor(graph, node)) is not None:
        behind, scale = [node, *behind], scale * factor
        node = _only_producer(graph, node.inputs[0])
    return node, behind, scale


def _is(node: Node, kind: str, alg: str) -> bool:
    return node.kind == kind and node.attrs["alg"] == alg


def _factor(graph: PortableGraph, node: Node) -> float | None:
    """The finite number that a node multiplies with, if that is what it does."""
    if _is(node, "eltwise", "linear") and node.attrs["beta"] == 0 and math.isfinite(node.attrs["alpha"]):
        return float(node.attrs["alpha"])
    divisor = divisor_of(graph, node)
    return None if divisor is None else 1 / divisor


def _only_producer(graph: PortableGraph, tensor: int) -> Node | None:
    return graph.nodes.producer(tensor) if is_read_once(graph, tensor) else None


def _without_factor(graph: PortableGraph, tensor: int) -> tuple[int, float]:
    """An operand without the number that it alone is multiplied by, and that number."""
    view, read = None, tensor
    while (node := _only_producer(graph, read)) is not None and node.kind in VIEWS:
        view, read = node, node.inputs[0]
    factor = None if node is None or node.is_scaled or node.post_ops else _factor(graph, node)
    if node is None or factor is None:
        return tensor, 1.0
    if view is None:
        return node.inputs[0], factor
    graph.nodes.rewire(view, node.inputs[:1])
    graph.nodes.remove(node)
    return tensor, factor


def _rows(graph: PortableGraph, tensor: int, is_transposed: bool, before: Node, grouped: bool = True) -> int:
    """Keys or values as rows; ``grouped``: with the heads that they have before these are repeated."""
    swapped = [*range(len(graph.tensors[tensor].shape) - 2), -1, -2]
    swapped[-2:] = [len(swapped) - 1, len(swapped) - 2]
    while (node := graph.nodes.producer(tensor)) is not None:
        if node.kind == "permute" and list(node.attrs["axes"]) == swapped:
            tensor, is_transposed = node.inputs[0], not is_transposed
            continue
        few = _before_repeat(graph, node) if grouped else None
        if few is None and _widens_kept(graph, node, grouped):
            tensor = node.inputs[0]
            continue
        if few is None:
            break
        shape = graph.tensors[few].shape
        apart = (*shape[:2], *shape[3:])
        source = graph.nodes.producer(few)
        if source is not None and source.kind == "reshape" and graph.tensors[source.inputs[0]].shape == apart:
            tensor = source.inputs[0]
        else:
            tensor = graph.insert("reshape", [few], apart, graph.tensors[few].dtype, before).outputs[0]
        grouped = False  # behind them there may be a cast
    if not is_transposed:
        return tensor
    shape, dtype = graph.tensors[tensor].shape, graph.tensors[tensor].dtype
    rows = (*shape[:-2], shape[-1], shape[-2])
    return graph.insert("permute", [tensor], rows, dtype, before, axes=swapped).outputs[0]


def _widens_kept(graph: PortableGraph, node: Node, grouped: bool) -> bool:
    """Whether a node casts keys or values that others read, as a cache is, or repeated heads: attention reads both."""
    if node.kind != "reorder" or node.is_scaled or node.post_ops or graph.tensors[node.inputs[0]].dtype not in _CACHES:
        return False
    maker = graph.nodes.producer(node.inputs[0])
    is_repeat = grouped and maker is not None and _before_repeat(graph, maker) is not None
    return is_repeat or not is_read_once(graph, node.inputs[0])


def _before_repeat(graph: PortableGraph, node: Node) -> int | None:
    """``(B, G, 1, ...)`` behind ``(B, G, 1, ...) ─ expand ─ (B, G, r, ...) ─ reshape ─ (B, G·r, ...)``."""
    expand = graph.nodes.producer(node.inputs[0])
    if node.kind != "reshape" or expand is None or expand.kind != "expand":
        return None
    few, wide = (graph.tensors[t].shape for t in (expand.inputs[0], expand.outputs[0]))
    result = graph.tensors[node.outputs[0]].shape
    if len(wide) != 5 or len(result) != 4 or few[2] != 1 or (few[:2], few[3:]) != (wide[:2], wide[3:]):
        return None
    return expand.inputs[0] if (result[0], *result[2:]) == (wide[0], *wide[3:]) else None
