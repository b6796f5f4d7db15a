"""Sequences whose items are known: lists of values, which need no operator.

The importer counts negative positions from another end.
"""

from __future__ import annotations

import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _items(graph: Graph, name: str) -> list[str] | None:
    """The values in a sequence."""
    maker = next((n for n in graph.nodes if name in n.output), None)
    if maker is None:
        return None
    if maker.op_type == "SequenceConstruct":
        return list(maker.input)
    if maker.op_type == "SequenceEmpty":
        return []
    if maker.op_type not in ("SequenceInsert", "SequenceErase"):
        return None
    return _edited(graph, maker)


def _edited(graph: Graph, node: onnx.NodeProto) -> list[str] | None:
    items = _items(graph, node.input[0])
    inserts = node.op_type == "SequenceInsert"
    name = (*node.input, "", "")[2 if inserts else 1]
    position = _position(graph, name)
    if items is None or (name and position is None):
        return None
    if inserts:
        at = len(items) if position is None else position + len(items) if position < 0 else position
        return [*items[:at], node.input[1], *items[at:]]
    at = -1 if position is None else position
    return [item for i, item in enumerate(items) if i != at % len(items)]


def _position(graph: Graph, name: str) -> int | None:
    value = graph.constant(name) if name else None
    return None if value is None else int(value.reshape(()))


def _edit(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    items = _edited(graph, node)
    if not items:
        return None
    return [onnx.helper.make_node("SequenceConstruct", items, node.output, name=node.name)]


def _at(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    items, position = _items(graph, node.input[0]), _position(graph, node.input[1])
    if items is None or position is None:
        return None
    b = Builder(graph, node)
    b.add("Identity", [items[position]], node.output[0])
    return b.nodes


RULES = {("", "SequenceInsert"): _edit, ("", "SequenceErase"): _edit, ("", "SequenceAt"): _at}
