"""Operators that ONNX defines by others, where the importer has no converter or a broken one."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs
from onnx.inliner import inline_selected_functions

from ..onnx_graph import Graph
from ..onnx_importer import converters
from ..onnx_nodes import is_standard
from .instantiate import instantiate

#: common operators that have none: to ask ONNX costs 10 ms when a process first does it
_WITHOUT_BODY = frozenset({"GRU", "LSTM", "RNN"})
_MAX_DEPTH = 4  # bodies may hold such operators again


def expand_functions(graph: Graph) -> None:
    """Replace such nodes by the bodies that the standard gives."""
    known = set(converters())
    for _ in range(_MAX_DEPTH):
        wanted = {
            node.op_type
            for node in graph.nodes
            if is_standard(node) and _needs_body(graph, node, known) and _has_body(node.op_type, graph.opset)
        }
        if not wanted:
            return
        graph.nodes = [_with_defaults(n, graph.opset) if n.op_type in wanted else n for n in graph.nodes]
        skeleton, _ = graph.without_weights(0)  # the inliner wants a type for everything, and no values
        functions = [("", op) for op in sorted(wanted)]
        try:
            graph.take_nodes(inline_selected_functions(skeleton, functions, inline_schema_functions=True))
        except RuntimeError:  # the inliner wants a type for every input, also for those that a node leaves out
            if not _instantiate(graph, wanted):
                return  # the importer then names the operator


def _instantiate(graph: Graph, wanted: set[str]) -> bool:
    """Do it node by node; whether anything was replaced."""
    graph.infer_shapes()
    graph.settle_types()
    bodies = [instantiate(graph, n) if n.op_type in wanted and is_standard(n) else None for n in graph.nodes]
    pairs = zip(bodies, graph.nodes, strict=True)
    graph.nodes = [inner for body, node in pairs for inner in ([node] if body is None else body)]
    return any(body is not None for body in bodies)


def _needs_body(graph: Graph, node: onnx.NodeProto, known: set[str]) -> bool:
    """Whether the importer has no converter, or one that fails on this node."""
    if node.op_type == "Attention":  # it reads the attributes of ONNX Runtime's operator of that name
        return True
    if node.op_type == "LayerNormalization":  # it makes up the mean and the deviation
        return any(o and graph.is_read(o) for o in node.output[1:])
    return node.op_type not in known and node.op_type not in _WITHOUT_BODY


def _has_body(op: str, opset: int) -> bool:
    if not defs.has(op):
        return False
    try:
        schema = defs.get_schema(op, opset)
    except defs.SchemaError:  # younger than the model's opset
        return False
    body: Any = schema  # its stubs lack these two
    return bool(body.has_function or body.has_context_dependent_function)


def _with_defaults(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """A copy with every attribute that has a default: the bodies refer to attributes and would find nothing."""
    given = {a.name for a in node.attribute}
    full = onnx.NodeProto()
    full.CopyFrom(node)
    for name, attribute in defs.get_schema(node.op_type, opset).attributes.items():
        if name not in given and attribute.default_value.type:
            full.attribute.append(attribute.default_value)
    return full
