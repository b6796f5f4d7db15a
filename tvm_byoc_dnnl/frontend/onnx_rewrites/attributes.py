"""Attributes that later became inputs, or the other way round, where the importer reads the wrong one."""

from __future__ import annotations

import onnx

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _slice(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Before opset 10 the bounds are attributes; the importer only reads inputs."""
    b = Builder(graph, node)
    if "starts" not in b.attrs:
        return None
    starts, ends = b.attrs["starts"], b.attrs["ends"]
    axes = b.attrs.get("axes", list(range(len(starts))))
    b.add("Slice", [node.input[0], *(b.ints(list(v)) for v in (starts, ends, axes))], node.output[0])
    return b.nodes


def _top_k(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """In opset 10 k is an input; the importer reads the attribute of opset 1, and takes 1 for a missing one."""
    if graph.elem_type(node.input[0]) == onnx.TensorProto.UINT64:
        raise UnsupportedError(
            f"no Relax equivalent for TopK of uint64 (node `{node.name or node.output[0]}`): TVM does not sort "
            "such numbers; cast to int64 in front of it"
        )
    if graph.opset != 10 or len(node.input) < 2:
        return None
    k = graph.constant(node.input[1])
    if k is None:
        return None
    new = onnx.NodeProto()
    new.CopyFrom(node)
    del new.input[1:]
    new.attribute.append(onnx.helper.make_attribute("k", int(k.reshape(()))))
    return [new]


RULES = {("", "Slice"): _slice, ("", "TopK"): _top_k}
