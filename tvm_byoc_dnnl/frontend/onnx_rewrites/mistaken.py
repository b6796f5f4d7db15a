"""Nodes that the importer would compute wrong: rewritten where that is easy, otherwise refused."""

from __future__ import annotations

import onnx

from ..._compat import PRELU_TAKES_ANY_SLOPE
from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import INTEGERS, integer_power


def _refuse(node: onnx.NodeProto, what: str) -> UnsupportedError:
    return UnsupportedError(f"no Relax equivalent for {node.op_type} {what} (node `{node.name or node.output[0]}`)")


def _power(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """ONNX lets the exponent be of another type, and PyTorch exports ``x ** 2`` so."""
    base, exponent = (graph.elem_type(name) for name in node.input)
    if base in INTEGERS and base == exponent:
        return integer_power(graph, node)
    if not base or not exponent or base == exponent:
        return None
    b = Builder(graph, node)
    if base in INTEGERS and exponent not in INTEGERS:
        real = b.add("Cast", [node.input[0]], to=exponent)
        b.add("Cast", [b.add("Pow", [real, node.input[1]])], node.output[0], to=base)
    else:
        b.add("Pow", [node.input[0], b.add("Cast", [node.input[1]], to=base)], node.output[0])
    return b.nodes


def _prelu(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """TVM takes no scalar and no integers; 0.26 a slope of rank 1 or of the data's rank with one dim that is not 1."""
    rank, slope = graph.rank(node.input[0]), graph.static_shape(node.input[1])
    b = Builder(graph, node)
    wide = slope is not None and sum(d != 1 for d in slope) > 1
    if rank == 0 or graph.elem_type(node.input[0]) in INTEGERS or (wide and not PRELU_TAKES_ANY_SLOPE):
        x, weights = node.input
        below = b.add("Less", [x, b.number(0, like=x)])
        b.add("Where", [below, b.add("Mul", [x, weights]), x], node.output[0])
        return b.nodes
    if rank is None or slope is None or not 1 < len(slope) < rank:
        return None
    full = b.add("Reshape", [node.input[1], b.ints([1] * (rank - len(slope)) + list(slope))])
    b.add("PRelu", [node.input[0], full], node.output[0])
    return b.nodes


def _roi_align(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """TVM takes the largest interpolated sample, ONNX the largest weighted corner, and moves boxes before it scales."""
    b = Builder(graph, node)
    if b.attrs.get("mode", "avg") == "max":
        raise _refuse(node, "with mode `max`")
    scale, default = b.attrs.get("spatial_scale", 1.0), "output_half_pixel" if graph.opset < 16 else "half_pixel"
    if b.attrs.get("coordinate_transformation_mode", default) != "half_pixel" or scale == 1:
        return None
    x, boxes, batch = node.input
    moved = b.add("Add", [boxes, b.number(0.5 - 0.5 / scale, like=boxes)])
    b.add("RoiAlign", [x, moved, batch], node.output[0], **b.attrs)
    b.settle()
    return b.nodes


def _eye_like(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """TVM makes one of the data's type."""
    b = Builder(graph, node)
    dtype = b.attrs.pop("dtype", None)
    if dtype is None:
        return None
    b.add("Cast", [b.add("EyeLike", node.input, **b.attrs)], node.output[0], to=dtype)
    return b.nodes


RULES = {
    ("", "EyeLike"): _eye_like,
    ("", "PRelu"): _prelu,
    ("", "Pow"): _power,
    ("", "RoiAlign"): _roi_align,
}
