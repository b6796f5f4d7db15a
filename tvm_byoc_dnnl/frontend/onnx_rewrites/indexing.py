"""Elements that are written or marked by their indices."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes

_MOST = 1 << 22  # indices of other axes that a model may get as constants


def _scatter_elements(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """TVM wants as many indices as the data has elements along the other axes; here they are written by coordinates."""
    b = Builder(graph, node)
    data, indices = graph.dims(node.input[0]), graph.static_shape(node.input[1])
    if data is None or indices is None or len(data) != len(indices):
        return None  # sizes that a call gives are compared in the call
    axis = b.attrs.get("axis", 0) % max(1, len(data))
    if all(own == other for i, (own, other) in enumerate(zip(data, indices, strict=True)) if i != axis):
        return None
    if np.prod(indices) > _MOST:
        raise _refuse(node, f"with {np.prod(indices)} indices that leave out elements of other axes")
    places = []
    for i, length in enumerate(indices):
        if i == axis:
            along = b.add("Cast", [node.input[1]], to=TensorProto.INT64)
        else:
            grid = np.arange(length).reshape([-1 if k == i else 1 for k in range(len(indices))])
            along = graph.add_constant(f"{node.output[0]}_axis", np.ascontiguousarray(np.broadcast_to(grid, indices)))
        places.append(b.add("Reshape", [along, b.ints([*indices, 1])]))
    attrs = {k: v for k, v in b.attrs.items() if k != "axis"}
    b.add("ScatterND", [node.input[0], b.add("Concat", places, axis=-1), node.input[2]], node.output[0], **attrs)
    return b.nodes


def _one_hot(graph: Graph, node: onnx.NodeProto) -> Nodes:
    """By comparing: an index that is out of range marks nothing, and the two values may come from anywhere."""
    b = Builder(graph, node)
    indices, depth, values = node.input
    count, rank = graph.constant(depth), graph.rank(indices)
    if count is None or rank is None:
        raise _refuse(node, "whose depth is no constant, or of a tensor of unknown rank")
    size = int(count.reshape(-1)[0])
    axis = b.attrs.get("axis", -1) % (rank + 1)
    place = b.add("Cast", [indices], to=TensorProto.INT64)
    below = b.add("Less", [place, graph.add_constant(f"{node.output[0]}_zero", np.array(0, "int64"))])
    number = graph.add_constant(f"{node.output[0]}_depth", np.array(size, "int64"))
    place = b.add("Where", [below, b.add("Add", [place, number]), place])
    wide = (
        b.add("Unsqueeze", [place, b.ints([axis])]) if graph.opset >= 13 else b.add("Unsqueeze", [place], axes=[axis])
    )
    marks = np.arange(size).reshape([-1] + [1] * (rank - axis))
    chosen = b.add("Equal", [wide, graph.add_constant(f"{node.output[0]}_marks", marks)])
    off, on = (b.add("Gather", [values, graph.add_constant(f"{node.output[0]}_{i}", np.array(i))]) for i in (0, 1))
    b.add("Where", [chosen, on, off], node.output[0])
    return b.nodes


def _refuse(node: onnx.NodeProto, what: str) -> UnsupportedError:
    return UnsupportedError(f"no Relax equivalent for {node.op_type} {what} (node `{node.name or node.output[0]}`)")


RULES = {("", "OneHot"): _one_hot, ("", "ScatterElements"): _scatter_elements, ("", "Scatter"): _scatter_elements}
