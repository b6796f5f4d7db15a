"""The body of an operator that ONNX defines by others, for one node.

ONNX's own inliner stops where an operator leaves out an input in the middle, as `Attention` without a mask and with a
cache does.
"""

from __future__ import annotations

import onnx
from onnx import TypeProto, defs, helper

from ..onnx_graph import Graph
from .builder import Nodes

__all__ = ["instantiate", "renamed"]


def instantiate(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The nodes that replace ``node``; ``None`` if it has no body."""
    schema = defs.get_schema(node.op_type, graph.opset, node.domain)
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = [_type_of(graph, name) for name in node.input]
        try:
            body = schema.get_context_dependent_function(node.SerializeToString(), types)
        except RuntimeError:  # it wants a type that is not known
            return None
        function.ParseFromString(body)
    elif schema.has_function:
        function.CopyFrom(schema.function_body)
    if not function.node:
        return None
    names = dict(zip(function.input, [*node.input, *[""] * len(function.input)], strict=False))
    outputs = dict(zip(function.output, node.output, strict=False))
    names.update({inner: outer for inner, outer in outputs.items() if outer})
    attributes = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    prefix = graph.fresh(f"{node.output[0]}_{node.op_type}")
    return [renamed(inner, names, attributes, prefix) for inner in function.node]


def _type_of(graph: Graph, name: str) -> bytes:
    kind = graph.elem_type(name) if name else 0
    return (helper.make_tensor_type_proto(kind, graph.dims(name)) if kind else TypeProto()).SerializeToString()


def renamed(
    node: onnx.NodeProto, names: dict[str, str], attributes: dict[str, onnx.AttributeProto], prefix: str
) -> onnx.NodeProto:
    """A copy with the names of the outside, those of the inside made unique, and the attributes' values."""
    new = onnx.NodeProto()
    new.CopyFrom(node)
    new.input[:] = [_name(n, names, prefix) for n in node.input]
    new.output[:] = [_name(n, names, prefix) for n in node.output]
    new.name = f"{prefix}_{node.name or node.output[0]}"
    del new.attribute[:]
    for attribute in node.attribute:
        found = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if found is None:  # optional, and left out
            continue
        copy = new.attribute.add()
        copy.CopyFrom(found)
        copy.name = attribute.name
        for graph in [copy.g] if copy.HasField("g") else copy.graphs:
            _rename_graph(graph, names, attributes, prefix)
    return new


def _rename_graph(
    graph: onnx.GraphProto, names: dict[str, str], attributes: dict[str, onnx.AttributeProto], prefix: str
) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = _name(value.name, names, prefix)
    nodes = [renamed(n, names, attributes, prefix) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _name(name: str, names: dict[str, str], prefix: str) -> str:
    return names.get(name, f"{prefix}_{name}") if name else ""
