"""Attention on the portable graph: two products with a softmax between them become one node.

    query ──────┐                                       query ─┐
    key ─ permute ─ matmul ─ · scale ─ + bias ─ softmax ─┐     key ─┼─ attention
    value ───────────────────────────────────────────── matmul   value ─┘

So Relax's own operators and what exporters write instead are one kind, and the engine chooses how to compute it. Heads
of keys that are repeated for several heads of queries are read once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...vendor import Node, PortableGraph
from .views import VIEWS, divisor_of


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
    alg: str

    def replace(self, graph: PortableGraph) -> None:
        *others, last = self.nodes
        query, of_query = _without_factor(graph, self.query)
        keys, of_keys = _without_factor(graph, self.keys)
        key, value = _rows(graph, keys, True, last), _rows(graph, self.value, False, last)
        if graph.tensors[key].shape[:-2] != graph.tensors[value].shape[:-2]:
            key, value = _rows(graph, keys, True, last, grouped=False), self.value
        last.kind = "attention"
        last.attrs = {"alg": self.alg, "scale": self.scale * of_query * of_keys}
        graph.nodes.rewire(last, [query, key, value, *self.bias])
        for node in reversed(others):
            graph.nodes.remove(node)
        last.stands_for(*others)


def _match(graph: PortableGraph, softmax: Node) -> _Attention | None:
    shape = graph.tensors[softmax.outputs[0]].shape
    if len(shape) not in (3, 4) or softmax.attrs["axis"] != len(shape) - 1 or softmax.attrs["alg"] != "accurate":
        return None
    behind, alg = [], "accurate"
    last = _only_reader(graph, softmax)
    if last is not None and _is(last, "eltwise", "relu") and last.attrs["alpha"] == 0:  # shares that are NaN are 0
        behind, alg = [last], "no_nan"
        last = _only_reader(graph, last)
    if last is None or last.kind != "matmul" or len(last.inputs) != 2:
        return None
    shares, value = last.inputs
    before = _scores(graph, softmax.inputs[0])
    if before is None or shares not in (softmax, *behind)[-1].outputs:
        return None
    nodes, bias, scale = before
    query, keys = nodes[0].inputs
    everything = [*nodes, softmax, *behind, last]
    heads = shape[:-2]
    if any(graph.tensors[t].shape[:-2] != heads for t in (query, keys, value)):
        return None
    if any(n.is_scaled or n.post_ops for n in everything):
        return None
    if any(graph.tensors[t].dtype != "float32" for n in everything for t in (*n.inputs, *n.outputs)):
        return None
    return _Attention(everything, query, keys, value, bias, scale, alg)


def _scores(graph: PortableGraph, tensor: int) -> tuple[list[Node], list[int], float] | None:
    """The product behind the scores with what scales it and is added to it, the bias, and the scale."""
    node = _only_producer(graph, tensor)
    if node is not None and _is(node, "binary", "add"):
        for inner, bias in (node.inputs, node.inputs[::-1]):
            found = _scaled(graph, inner)
            if found is not None and graph.tensors[inner].shape == graph.tensors[tensor].shape and inner != bias:
                return [*found[0], node], [bias], found[1]
        return None
    found = _scaled(graph, tensor)
    return None if found is None else (found[0], [], found[1])


def _scaled(graph: PortableGraph, tensor: int) -> tuple[list[Node], float] | None:
    node, behind, scale = _only_producer(graph, tensor), [], 1.0
    if node is not None and (factor := _factor(graph, node)) is not None:
        behind, scale = [node], factor
        node = _only_producer(graph, node.inputs[0])
    return ([node, *behind], scale) if node is not None and node.kind == "matmul" and len(node.inputs) == 2 else None


def _is(node: Node, kind: str, alg: str) -> bool:
    return node.kind == kind and node.attrs["alg"] == alg


def _factor(graph: PortableGraph, node: Node) -> float | None:
    """The finite number that a node multiplies with, if that is what it does."""
    if _is(node, "eltwise", "linear") and node.attrs["beta"] == 0 and math.isfinite(node.attrs["alpha"]):
        return float(node.attrs["alpha"])
    divisor = divisor_of(graph, node)
    return None if divisor is None else 1 / divisor


def _is_read_once(graph: PortableGraph, tensor: int) -> bool:
    return tensor not in graph.outputs and graph.nodes.read_count(tensor) == 1


def _only_reader(graph: PortableGraph, node: Node) -> Node | None:
    return graph.nodes.readers(node.outputs[0])[0] if _is_read_once(graph, node.outputs[0]) else None


def _only_producer(graph: PortableGraph, tensor: int) -> Node | None:
    return graph.nodes.producer(tensor) if _is_read_once(graph, tensor) else None


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
        if few is None:
            break
        shape = graph.tensors[few].shape
        apart = (*shape[:2], *shape[3:])
        source = graph.nodes.producer(few)
        if source is not None and source.kind == "reshape" and graph.tensors[source.inputs[0]].shape == apart:
            tensor = source.inputs[0]
        else:
            tensor = graph.insert("reshape", [few], apart, "float32", before).outputs[0]
        break
    if not is_transposed:
        return tensor
    shape = graph.tensors[tensor].shape
    rows = (*shape[:-2], shape[-1], shape[-2])
    return graph.insert("permute", [tensor], rows, "float32", before, axes=swapped).outputs[0]


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
