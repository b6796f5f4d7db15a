"""Norms and running products that the importer has no converter for."""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import dtype_of

_LONGEST = 512  # of an axis whose running product is taken: the memory grows with its square


def _lp_normalization(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """``x / ‖x‖`` along one axis; 0 where the norm is 0."""
    b = Builder(graph, node)
    axis, x = b.attrs.get("axis", -1), node.input[0]
    op = "ReduceL1" if b.attrs.get("p", 2) == 1 else "ReduceL2"
    norm = b.add(op, [x, b.ints([axis])]) if graph.opset >= 18 else b.add(op, [x], axes=[axis])
    zero = b.number(0, like=x)
    b.add("Where", [b.add("Equal", [norm, zero]), zero, b.add("Div", [x, norm])], node.output[0])
    return b.nodes


def _cumulative_product(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Every element as the product of a row: the elements before it, and ones."""
    b = Builder(graph, node)
    shape, axis, dtype = (
        graph.static_shape(node.input[0]),
        graph.constant(node.input[1]),
        dtype_of(graph, node.input[0]),
    )
    if shape is None or axis is None or dtype is None:
        return None
    where = int(axis.reshape(())) % len(shape)
    length = shape[where]
    if length > _LONGEST:
        return None
    exclusive, reverse = b.attrs.get("exclusive", 0), b.attrs.get("reverse", 0)
    taken = np.tri(length, k=-1 if exclusive else 0, dtype=bool)  # [result, factor]
    taken = (taken[::-1, ::-1] if reverse else taken).reshape(length, length, *[1] * (len(shape) - where - 1))
    one = graph.add_constant(f"{node.output[0]}_one", np.array(1, dtype))
    mask = graph.add_constant(f"{node.output[0]}_taken", np.ascontiguousarray(taken))
    wide = b.add("Unsqueeze", [node.input[0], b.ints([where])])
    factors = b.add("Where", [mask, wide, one])
    b.add("ReduceProd", [factors, b.ints([where + 1])], node.output[0], keepdims=0)
    return b.nodes


RULES = {("", "CumProd"): _cumulative_product, ("", "LpNormalization"): _lp_normalization}
