"""Copies of nodes with other names."""

from __future__ import annotations

import onnx

__all__ = ["renamed"]


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
