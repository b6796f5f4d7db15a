"""The largest and smallest elements, where a NaN counts as larger and as smaller than every number, as in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import FLOATS


def _arg(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The first NaN if there is one (the last one with ``select_last_index``); TVM may take any element then."""
    if graph.elem_type(node.input[0]) not in FLOATS:
        return None
    b, x = Builder(graph, node), node.input[0]
    is_nan = b.add("Cast", [b.add("IsNaN", [x])], to=TensorProto.INT32)
    first_nan = b.add("ArgMax", [is_nan], **b.attrs)
    number = b.add(node.op_type, [x], **b.attrs)
    b.settle()
    axis, keeps = b.attrs.get("axis", 0), b.attrs.get("keepdims", 1)
    if graph.opset >= 18:
        some = b.add("ReduceMax", [is_nan, b.ints([axis])], keepdims=keeps)
    else:
        some = b.add("ReduceMax", [is_nan], axes=[axis], keepdims=keeps)
    b.add("Where", [b.add("Cast", [some], to=TensorProto.BOOL), first_nan, number], node.output[0])
    return b.nodes


def _top_k(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Sorted by keys of float64 in which a NaN is ∞, and ∞ a number that no narrower type has.

    In opset 10 k is an input; the importer reads the attribute of opset 1, and takes 1 for a missing one. Results that
    may have any order are sorted.
    """
    b = Builder(graph, node)
    x, kind = node.input[0], graph.elem_type(node.input[0])
    if kind == TensorProto.UINT64:
        raise UnsupportedError(
            f"no Relax equivalent for TopK of uint64 (node `{node.name or node.output[0]}`): TVM does not sort "
            "such numbers; cast to int64 in front of it"
        )
    inputs, k = list(node.input[1:]), graph.constant(node.input[1]) if len(node.input) > 1 else None
    if graph.opset == 10 and k is not None:
        inputs, b.attrs["k"] = [], int(k.reshape(()))
    unsorted = not b.attrs.pop("sorted", 1)
    if kind not in FLOATS:
        if len(inputs) == len(node.input) - 1 and not unsorted:
            return None
        keys = x
    else:
        wide = b.add("Cast", [x], to=TensorProto.DOUBLE) if kind != TensorProto.DOUBLE else x
        infinity, largest = (
            graph.add_constant(f"{node.output[0]}_{name}", np.array(value, "float64"))
            for name, value in (("infinity", np.inf), ("largest", np.finfo("float64").max))
        )
        number = b.add("Where", [b.add("Equal", [wide, infinity]), largest, wide])
        keys = b.add("Where", [b.add("IsNaN", [x]), infinity, number])
    values, indices = graph.fresh(f"{node.output[0]}_keys"), graph.fresh(f"{node.output[0]}_places")
    new = onnx.helper.make_node("TopK", [keys, *inputs], [values, indices], **b.attrs)
    b.settle(new)
    b.nodes.append(new)
    if node.output[0]:
        b.add("GatherElements", [x, indices], node.output[0], axis=b.attrs.get("axis", -1))
    if len(node.output) > 1 and node.output[1]:
        b.add("Identity", [indices], node.output[1])
    return b.nodes


RULES = {("", "ArgMax"): _arg, ("", "ArgMin"): _arg, ("", "TopK"): _top_k}
