"""What the importer would take and compute something else for: done right where that is easy, refused else."""

from __future__ import annotations

import onnx

from ...errors import UnsupportedError
from ..onnx_graph import Graph, attributes
from .builder import Builder, Nodes


def _refuse(node: onnx.NodeProto, what: str) -> UnsupportedError:
    return UnsupportedError(f"no Relax equivalent for {node.op_type} {what} (node `{node.name or node.output[0]}`)")


def _dropout(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The importer takes it for inference."""
    training = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if training is not None and training.any():
        raise _refuse(node, "in training mode")
    return None


def _batch_norm(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The importer updates the running statistics by the other momentum."""
    if attributes(node).get("training_mode") and any(o and graph.is_read(o) for o in node.output[1:]):
        raise _refuse(node, "whose running statistics are read")
    return None


def _is_inf(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The importer looks for both signs, always."""
    b = Builder(graph, node)
    signs = {op for op, key in (("Greater", "detect_positive"), ("Less", "detect_negative")) if b.attrs.get(key, 1)}
    if len(signs) == 2:
        return None
    if not signs:
        raise _refuse(node, "that detects nothing")
    sign = b.add(signs.pop(), [node.input[0], b.number(0.0, like=node.input[0])])
    b.add("And", [b.add("IsInf", node.input), sign], node.output[0])
    return b.nodes


def _roi_align(_graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """TVM takes the largest interpolated sample, ONNX the largest weighted corner."""
    if attributes(node).get("mode", "avg") == "max":
        raise _refuse(node, "with mode `max`")
    return None


RULES = {
    ("", "BatchNormalization"): _batch_norm,
    ("", "Dropout"): _dropout,
    ("", "IsInf"): _is_inf,
    ("", "RoiAlign"): _roi_align,
}
