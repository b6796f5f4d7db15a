"""NaN where oneDNN loses it: ``value - 0 / (1 - bad)`` is NaN where ``bad`` is 1, and ``value`` where it is 0.

A maximum or minimum of oneDNN returns the second operand when one of them is NaN. So operators that it computes with
maxima (softmax, reductions) or with bounds (exp, the selection of ``where``) sometimes lose a NaN: docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...vendor import Dim, GraphBuilder, Node, PortableGraph, Value
from .views import VIEWS

#: option: whether NaN may be lost, for fewer primitives
FINITE_MATH = "finite_math"
#: option: whether bounds pass a NaN on, which Relax's operators do not
KEEP_NAN = "keep_nan"
#: elementwise functions that answer a NaN with a bound; a relu with a slope does not
_BOUNDS = ("relu", "clip", "hardsigmoid")


def keeps_nan(graph: PortableGraph) -> bool:
    """Whether the slower form is needed to keep a NaN."""
    return not graph.options.get(FINITE_MATH, False)


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
    """With the option, let relu, clip, maximum and minimum pass a NaN on, as ONNX Runtime does and TVM does not."""
    if not graph.options.get(KEEP_NAN, False):
        return
    for node in list(graph.nodes):
        alg = node.attrs.get("alg")
        is_bound = node.kind == "eltwise" and alg in _BOUNDS and not (alg == "relu" and node.attrs["alpha"])
        is_larger = node.kind == "binary" and alg in ("max", "min")  # these return a NaN of their second operand
        if (is_bound or is_larger) and "float" in graph.tensors[node.inputs[0]].dtype:
            _spread_nan(graph, node, node.inputs[0])


def _spread_nan(
    graph: PortableGraph, node: Node, of: int, axis: int | None = None, *, has_finite_sums: bool = False
) -> None:
    """Make the result of ``node`` NaN where the tensor ``of`` is; with ``axis`` in the whole row along it.

    Where a row without NaN has a finite sum, that says whether there is one: 0 · sum is 0 or NaN.
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
        total = add("reduction", (of,), row, alg="sum", p=0.0, epsilon=0.0)
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
        if reader.kind in VIEWS:
            seen = graph.tensors[reader.outputs[0]].shape
            if len(seen) == 0 or seen[-1] != shape[-1] or reader.attrs.get("axes", [axis])[-1] != axis:
                return False
            if not _is_only_summed(graph, reader.outputs[0], len(seen) - 1):
                return False
        elif reader.kind != "matmul" or reader.inputs[0] != tensor or tensor in reader.inputs[1:]:
            return False
    return True
