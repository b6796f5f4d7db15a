"""Opsets before 7: binary operators broadcast by attributes that the importer does not read."""

from __future__ import annotations

import onnx
from onnx import helper

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from ..onnx_nodes import OLDEST_OPSET, attributes, is_standard

_TARGET = 8


def modernise(graph: Graph) -> None:
    """Raise a model that is older than opset 7 to opset 8, by ONNX's own converter."""
    if graph.opset >= OLDEST_OPSET or not any(is_standard(node) for node in graph.nodes):
        return  # models of other domains alone need not say which opset they do not use
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    _align(graph, model.graph)
    try:
        graph.reload(onnx.version_converter.convert_version(model, _TARGET))
    except Exception as err:  # RuntimeErrors of several kinds from C++
        reason = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise UnsupportedError(
            f"the model has opset {graph.opset}; it must be at least {OLDEST_OPSET}, and ONNX's version converter "
            f"cannot raise it: {reason}"
        ) from err


def _align(graph: Graph, proto: onnx.GraphProto) -> None:
    """``broadcast=1, axis=a``: give the second operand the trailing 1s that put it at axis a.

    ONNX's converter only knows operands that are aligned at the end. PRelu's slope lies at axis 1, always.
    """
    graph.sort()
    old = list(proto.node)
    del proto.node[:]
    for node in old:
        attrs = attributes(node)
        axis = 1 if node.op_type == "PRelu" else attrs.get("axis")
        if axis is not None and (attrs.get("broadcast") or node.op_type == "PRelu") and len(node.input) == 2:
            _align_node(graph, proto, node, axis)
        proto.node.append(node)


def _align_node(graph: Graph, proto: onnx.GraphProto, node: onnx.NodeProto, axis: int) -> None:
    first, second = (graph.rank(name) for name in node.input)
    if first is None or second is None:
        raise UnsupportedError(f"`{node.op_type}` broadcasts along an axis of a tensor of unknown rank")
    missing = first - axis % first - second
    if missing > 0:
        name = graph.fresh(f"{node.input[1]}_aligned")
        axes = list(range(second, second + missing))
        proto.node.append(helper.make_node("Unsqueeze", [node.input[1]], [name], axes=axes))
        node.input[1] = name
    kept = [a for a in node.attribute if a.name != "axis"]
    del node.attribute[:]
    node.attribute.extend(kept)
