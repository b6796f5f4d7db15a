"""What oneDNN would lose: NaN, infinities, and the digits of means that are subtracted from what they are the means of.

A maximum or minimum of oneDNN returns the second operand when one of them is NaN. So operators that it computes with
maxima (softmax, reductions) or with bounds (exp, the selection of ``where``) sometimes lose a NaN: docs/numerics.md.

    x ─┬─ pooling (one window) ── reshape ─┐          x ─┬─ rows ── reduction ── reshape ─┐
       └────────────────────────────── sub ┘    ──>      └─────────────────────────── sub ┘

A pooling adds its pixels in float32, whatever their number; the mean of rows is exact.

    x ── max  ──>  x ── · 0.5 ── max ── · 2

The largest of nothing but -∞ is the least float32 for oneDNN. Twice that number is -∞, and no half of a finite number
is as small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...vendor import Dim, GraphBuilder, Node, PortableGraph, Value
from .common import FLOATS, option, product
from .views import VIEWS

#: elementwise functions that answer a NaN with a bound; a relu with a slope does not
_BOUNDS = ("relu", "clip", "hardsigmoid")
#: those whose results are never -∞
_BOUNDED = (
    *("abs", "exp", "gelu_erf", "gelu_tanh", "hardsigmoid", "hardswish", "logistic", "relu_of_numbers", "square"),
    *("swish", "tanh"),
)


def keeps_nan(graph: PortableGraph) -> bool:
    """Whether the slower form is needed to keep a NaN."""
    return not option(graph, "finite_math")


def is_nan(g: GraphBuilder, value: Value) -> Value:
    """1 where ``value`` is NaN, else 0, in its own dtype."""
    return g.binary("ne", value, value, value.shape)


def nan_where(g: GraphBuilder, value: Value, bad: Value, shape: Sequence[Dim]) -> Value:
    """``value``, and NaN where ``bad`` is 1."""
    return g.binary("sub", value, g.eltwise(g.eltwise(bad, "linear", -1, 1), "pow", 0, -1), shape)


def keep_nan_of_softmax(graph: PortableGraph) -> None:
    """Make a row of a softmax that has a NaN all NaN, as it must be: oneDNN writes that NaN among zeros.

    Where only products or convolutions read it that sum over that row, nothing is added: they spread the NaN.
    """
    for node in [n for n in graph.nodes if n.kind == "softmax" and keeps_nan(graph) and not n.is_scaled]:
        if not _is_only_summed(graph, node.outputs[0], node.attrs["axis"]):
            _spread_nan(graph, node, node.outputs[0], node.attrs["axis"], has_finite_sums=node.attrs["alg"] != "log")


def keep_nan_of_bounds(graph: PortableGraph) -> None:
    """With the option, let relu, clip, maximum and minimum pass a NaN on behind products too."""
    if not option(graph, "keep_nan"):
        return
    for node in list(graph.nodes):
        alg = node.attrs.get("alg")
        is_bound = node.kind == "eltwise" and alg in _BOUNDS and not (alg == "relu" and node.attrs["alpha"])
        is_larger = node.kind == "binary" and alg in ("max", "min")  # these return a NaN of their second operand
        if (is_bound or is_larger) and "float" in graph.tensors[node.inputs[0]].dtype:
            _spread_nan(graph, node, node.inputs[0])


def keep_infinities(graph: PortableGraph) -> None:
    """Let the maximum or the minimum of nothing but infinities be one."""
    for node in list(graph.nodes):
        alg, source, result = node.attrs.get("alg"), node.inputs[0], graph.tensors[node.outputs[0]]
        if result.dtype != "float32" or node.is_scaled or not keeps_nan(graph):
            continue  # the least float32 is -∞ in 16 bits
        if (node.kind == "pooling" and alg == "max") or (node.kind == "reduction" and alg in ("max", "min")):
            if (alg == "max" and _is_bounded(graph, source)) or _is_cut(graph, node.outputs[0], alg):
                continue
            half = graph.insert("eltwise", [source], graph.tensors[source].shape, "float32", node, **_TIMES, alpha=0.5)
            found = graph.new_tensor("float32", result.shape)
            twice = Node("eltwise", (found,), node.outputs, {**_TIMES, "alpha": 2.0})
            for new in (half, twice):
                new.stands_for(node)
            graph.nodes.rewire(node, inputs=half.outputs, outputs=[found])
            graph.nodes.insert(twice, before=None)
            graph.nodes.move(twice, after=node)


def _is_bounded(graph: PortableGraph, tensor: int) -> bool:
    """Whether it is known that no element is -∞."""
    node = graph.nodes.producer(tensor)
    if node is None:
        return False
    alg, alpha = node.attrs.get("alg"), node.attrs.get("alpha")
    if node.kind == "eltwise":
        return (
            alg in _BOUNDED or (alg == "relu" and alpha == 0) or (alg == "clip" and math.isfinite(node.attrs["alpha"]))
        )
    if node.kind == "reorder":
        return "int" in graph.tensors[node.inputs[0]].dtype
    if node.kind in (*VIEWS, "concat") or (node.kind == "pooling" and alg == "max"):
        return all(_is_bounded(graph, source) for source in node.inputs)
    is_comparison = node.kind == "binary" and alg in ("eq", "ge", "gt", "le", "lt", "ne")
    return is_comparison or (node.kind == "softmax" and alg != "log")


def _is_cut(graph: PortableGraph, tensor: int, alg: str) -> bool:
    """Whether all that reads a maximum or a minimum takes the larger or the smaller one of it and a finite number."""
    readers = graph.nodes.readers(tensor)
    if tensor in graph.outputs or not readers:
        return False
    for reader in readers:
        how, other = reader.attrs.get("alg"), reader.inputs[-1]
        if reader.kind == "eltwise" and alg == "max" and _is_bounded(graph, reader.outputs[0]) and "relu" in str(how):
            continue
        if reader.kind != "binary" or other == tensor:
            return False
        marks = graph.nodes.producer(other)
        if how == "sub" and marks is not None and (marks.attrs.get("alg"), marks.attrs.get("alpha")) == ("pow", 0):
            if not _is_cut(graph, reader.outputs[0], alg):  # the marks of `nan_where` are 0 or NaN
                return False
        elif how != alg or (value := graph.value_of(other)) is None or not np.isfinite(value).all():
            return False
    return True


def _spread_nan(
    graph: PortableGraph, node: Node, of: int, axis: int | None = None, *, has_finite_sums: bool = False
) -> None:
    """Make the result of ``node`` NaN where the tensor ``of`` is; with ``axis`` in the whole row along it.

    Where a row without NaN has a finite sum, that or the mean says whether there is one: 0 · sum is 0 or NaN.
    """
    out, tested = node.outputs[0], graph.tensors[of].shape
    shape, dtype = graph.tensors[out].shape, graph.tensors[out].dtype
    row = tested if axis is None else (*tested[:axis], 1, *tested[axis + 1 :])
    result = graph.new_tensor(dtype, shape)
    graph.replace({out: result})
    made = [node]

    def add(kind: str, inputs: Sequence[int], shape: Sequence[Dim], **attrs: Any) -> tuple[int, ...]:
        new = graph.insert(kind, inputs, shape, dtype, node, **attrs)
        new.stands_for(node)
        graph.nodes.move(new, after=made[-1])
        made.append(new)
        return new.outputs

    if has_finite_sums and row != tested:
        size = tested[axis] if axis is not None else 0
        # A kernel of ours takes means of float32 together with their factor; a mean of nothing has no value.
        alg = "mean" if dtype == "float32" and isinstance(size, int) and size > 0 else "sum"
        total = add("reduction", (of,), row, alg=alg, p=0.0, epsilon=0.0)
        bad = add("eltwise", total, row, alg="linear", alpha=0.0, beta=0.0)
    else:
        bad = add("binary", (of, of), tested, alg="ne")
        if row != tested:
            bad = add("reduction", bad, row, alg="max", p=0.0, epsilon=0.0)
        bad = add("eltwise", bad, row, alg="linear", alpha=-1.0, beta=1.0)
        bad = add("eltwise", bad, row, alg="pow", alpha=0.0, beta=-1.0)
    add("binary", (out, *bad), shape, alg="sub")
    graph.nodes.rewire(made[-1], outputs=[result])


def _sums_channels(graph: PortableGraph, node: Node, tensor: int) -> bool:
    """Whether ``node`` is a convolution of ``tensor`` without groups."""
    if node.kind != "convolution" or node.inputs[0] != tensor or tensor in node.inputs[1:]:
        return False
    return len(graph.tensors[node.inputs[1]].shape) == len(graph.tensors[tensor].shape)


def _is_only_summed(graph: PortableGraph, tensor: int, axis: int) -> bool:
    """Whether all that reads ``tensor`` sums over ``axis``: products over the last one, convolutions over channels."""
    shape = graph.tensors[tensor].shape
    if tensor in graph.outputs:
        return False
    for reader in graph.nodes.readers(tensor):
        if _sums_channels(graph, reader, tensor) and axis == 1:
            continue
        if axis != len(shape) - 1:
            return False
        result = graph.tensors[reader.outputs[0]]
        if reader.kind in VIEWS or (reader.kind == "reorder" and result.dtype in FLOATS):
            seen = result.shape
            if len(seen) == 0 or seen[-1] != shape[-1] or reader.attrs.get("axes", [axis])[-1] != axis:
                return False
            if not _is_only_summed(graph, reader.outputs[0], len(seen) - 1):
                return False
        elif reader.kind != "matmul" or reader.inputs[0] != tensor or tensor in reader.inputs[1:]:
            return False
    return True


_TIMES: dict[str, Any] = {"alg": "linear", "beta": 0.0}
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
