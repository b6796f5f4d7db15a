"""Means that are subtracted from what they are the means of: their errors are all that remains of large numbers.

    x ─┬─ pooling (one window) ── reshape ─┐          x ─┬─ rows ── reduction ── reshape ─┐
       └────────────────────────────── sub ┘    ──>      └─────────────────────────── sub ┘

A pooling adds its pixels in float32, whatever their number; the mean of rows is exact.
"""

from __future__ import annotations

from typing import Any

from ...vendor import GraphBuilder, Node, PortableGraph, Value
from .common import product
from .views import VIEWS

_ATTRS: dict[str, Any] = {"alg": "mean", "p": 0.0, "epsilon": 0.0}


def mean_of_rows(g: GraphBuilder, src: Value, axes: list[int]) -> Value:
    """The mean over ``axes``, which are kept with size 1, as that of the rows of a matrix."""
    kept = [i for i in range(src.ndim) if i not in axes]
    sizes = [product([src.shape[i] for i in part]) for part in (kept, axes)]
    rows = g.reshape(g.permute(src, [*kept, *axes]), sizes)
    mean = g.emit("reduction", [rows], (sizes[0], 1), **_ATTRS)
    return g.reshape(mean, [1 if i in axes else d for i, d in enumerate(src.shape)])


def exact_means(graph: PortableGraph) -> None:
    """Let means over the axes behind the channels that are subtracted from their source be those of rows."""
    for node in [n for n in graph.nodes if _is_mean(graph, n) and _is_subtracted(graph, n.inputs[0], n.outputs[0])]:
        source, result = node.inputs[0], node.outputs[0]
        shape, dtype = graph.tensors[source].shape, graph.tensors[source].dtype
        sizes = product(shape[:2]), product(shape[2:])
        rows = graph.insert("reshape", [source], sizes, dtype, node)
        mean = graph.insert("reduction", rows.outputs, (sizes[0], 1), dtype, node, **_ATTRS)
        mean.stands_for(node)
        graph.nodes.insert(Node("reshape", mean.outputs, (result,)), before=node)
        graph.nodes.remove(node)


def _is_mean(graph: PortableGraph, node: Node) -> bool:
    """Whether it is the mean over all axes behind the channels, as a pooling with one window or a reduction."""
    if node.kind not in ("pooling", "reduction") or node.is_scaled or node.post_ops:
        return False
    before, after = (graph.tensors[tensor].shape for tensor in (node.inputs[0], node.outputs[0]))
    if graph.tensors[node.inputs[0]].dtype != "float32" or len(before) < 3 or len(before) != len(after):
        return False
    if before[:2] != after[:2] or any(d != 1 for d in after[2:]):
        return False
    if node.kind == "reduction":
        return bool(node.attrs["alg"] == "mean")
    return "avg" in node.attrs["alg"] and tuple(node.attrs["kernel"]) == before[2:] and not any(node.attrs["pad_begin"])


def _is_subtracted(graph: PortableGraph, source: int, mean: int) -> bool:
    for reader in graph.nodes.readers(mean):
        if reader.kind in VIEWS and _is_subtracted(graph, source, reader.outputs[0]):
            return True
        if reader.kind == "binary" and reader.attrs["alg"] == "sub" and reader.inputs[0] == source:
            return True
    return False
