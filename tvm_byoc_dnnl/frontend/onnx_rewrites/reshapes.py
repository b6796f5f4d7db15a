"""``Reshape`` to a shape that the model computes, where at most one dim of it is open: such a shape is a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..onnx_graph import Graph
from ..onnx_nodes import attributes, is_standard

__all__ = ["settle_reshapes"]

_SAME_NUMBERS = ("Cast", "Identity", "Squeeze", "Unsqueeze")
_LONGEST = 64  # numbers of a shape
#: knowledge of one number: the number, the dim's symbol, the tensor and axis whose dim it is, or nothing
Known = Any


def settle_reshapes(graph: Graph) -> bool:
    """Give reshapes constant shapes: 0 for a dim that stays as it is, -1 for the one that is open."""
    shapes: dict[str, str] = {}  # result of Shape -> the tensor
    values: dict[str, list[Known]] = {}
    changed = False
    for position, node in enumerate(graph.nodes):
        if not is_standard(node):
            continue
        if node.op_type == "Shape" and not node.attribute:
            shapes[node.output[0]] = node.input[0]
        elif node.op_type == "Reshape":
            new = _settled(graph, node, values)
            if new is not None:
                graph.nodes[position] = new
                changed = True
        elif node.op_type in _SAME_NUMBERS:
            if node.input[0] in shapes:
                shapes[node.output[0]] = shapes[node.input[0]]
            elif node.input[0] in values:
                values[node.output[0]] = values[node.input[0]]
        elif node.op_type in ("Gather", "Slice"):
            found = _picked(graph, node, shapes, values)
            if found is not None:
                values[node.output[0]] = found
        elif node.op_type == "Concat" and _may_be_shape(graph, node, values):
            parts = [_numbers(graph, name, values) for name in node.input]
            if all(p is not None for p in parts):
                values[node.output[0]] = [number for part in parts for number in part or ()]
    return changed


def _may_be_shape(graph: Graph, node: onnx.NodeProto, values: dict[str, list[Known]]) -> bool:
    """Whether it joins vectors, and any number can be known, or there is no more than one part; data have neither."""
    constants = [graph.rank(name) for name in node.input if graph.is_constant(name)]
    if any(rank != 1 for rank in constants):
        return False
    return len(node.input) == 1 or bool(constants) or any(name in values for name in node.input)


def _numbers(graph: Graph, name: str, values: dict[str, list[Known]]) -> list[Known] | None:
    """The known numbers of a vector; ``None`` if even their count is unknown."""
    if name in values:
        return values[name]
    if graph.is_constant(name):
        return _few(graph, name)
    size = graph.static_shape(name)
    return [None] * size[0] if size is not None and len(size) == 1 else None


def _few(graph: Graph, name: str) -> list[int] | None:
    """The numbers of a constant that is no longer than a shape."""
    constant = graph.constant(name) if graph.is_constant(name) else None
    return None if constant is None or constant.size > _LONGEST else [int(v) for v in constant.reshape(-1)]


def _picked(
    graph: Graph, node: onnx.NodeProto, shapes: dict[str, str], values: dict[str, list[Known]]
) -> list[Known] | None:
    """The elements that a Gather or Slice with constant arguments takes out of a vector."""
    source = node.input[0]
    if source not in shapes and source not in values:
        return None
    numbers = [_few(graph, name) or [] for name in node.input[1:] if name]
    if not numbers or not all(numbers):
        return None
    if node.op_type == "Gather":
        indices = numbers[0]
    elif len(numbers) >= 2 and len(numbers[0]) == 1 and numbers[3:] in ([], [[1]]):
        start, stop = numbers[0][0], numbers[1][0]
        if start < 0 or stop < 0 or stop > 64:  # counted from the end, or up to it
            size = _length(graph, source, shapes, values)
            if size is None:
                return None
            start, stop, _ = slice(start, stop).indices(size)
        indices = list(range(start, stop))
    else:
        return None
    if source in values:
        vector = values[source]
        return [vector[i] if -len(vector) <= i < len(vector) else None for i in indices]
    return [_dim(graph, shapes[source], i) for i in indices]


def _length(graph: Graph, name: str, shapes: dict[str, str], values: dict[str, list[Known]]) -> int | None:
    return len(values[name]) if name in values else graph.rank(shapes[name])


def _dim(graph: Graph, tensor: str, axis: int) -> Known:
    """The known facts about a tensor's dim."""
    dims = graph.dims(tensor)
    if dims is None:
        return (tensor, axis) if axis >= 0 else None
    dim = dims[axis] if -len(dims) <= axis < len(dims) else None
    return (tensor, axis % len(dims)) if dim is None else dim


def _settled(graph: Graph, node: onnx.NodeProto, values: dict[str, list[Known]]) -> onnx.NodeProto | None:
    data, shape = node.input
    if shape not in values or attributes(node).get("allowzero", 0):
        return None
    target = [_spelled(graph, data, axis, number) for axis, number in enumerate(values[shape])]
    open_dims = [axis for axis, number in enumerate(target) if number is None]
    if len(open_dims) + target.count(-1) > 1:
        return None
    for axis in open_dims:
        target[axis] = -1
    name = graph.add_constant(f"{shape}_settled", np.array(target, "int64"))
    return helper.make_node("Reshape", [data, name], node.output, name=node.name)


def _spelled(graph: Graph, data: str, axis: int, number: Known) -> int | None:
    """A dim of the new shape as ``Reshape`` takes it."""
    if isinstance(number, int):
        return number
    own: Sequence[Known] = graph.dims(data) or ()
    same = number is not None and (number == (data, axis) or (axis < len(own) and number == own[axis]))
    return 0 if same else None
