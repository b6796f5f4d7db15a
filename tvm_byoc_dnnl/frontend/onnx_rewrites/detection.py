"""Operators of object detection."""

from __future__ import annotations

import numpy as np
import onnx

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes

_LIMITS = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")


def _suppression(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """ONNX drops boxes that overlap by more than the threshold, TVM also those that overlap by just as much.

    TVM has other values for limits that are left out, and takes these for limits that are no constants.
    """
    b = Builder(graph, node)
    most, overlap, score = (graph.constant(name) if name else None for name in b.inputs[2:5])
    for name, value, what in zip(b.inputs[2:5], (most, overlap, score), _LIMITS, strict=True):
        if name and value is None:
            raise UnsupportedError(
                f"no Relax equivalent for NonMaxSuppression whose {what} `{name}` is no constant (node "
                f"`{node.name or node.output[0]}`); make it an initialiser of the model"
            )
    if most is None or int(most.reshape(())) <= 0:
        b.add("Identity", [graph.add_constant(f"{node.output[0]}_nothing", np.zeros((0, 3), "int64"))], node.output[0])
        return b.nodes
    threshold = np.float32(0 if overlap is None else overlap.reshape(()))
    new = onnx.NodeProto()
    new.CopyFrom(node)
    scores, least = node.input[1], None if score is None else np.float32(score.reshape(()))
    if least is None or least < 0:
        scores, least = _ranks(b, scores, least), np.float32(0)
    above = np.asarray(np.nextafter(threshold, np.float32(np.inf)))
    new.input[:] = [node.input[0], scores, node.input[2], graph.add_constant(f"{node.output[0]}_threshold", above)]
    new.input.append(graph.add_constant(f"{node.output[0]}_score", np.asarray(least)))
    b.settle(new)
    return [*b.nodes, new]


def _ranks(b: Builder, scores: str, least: np.float32 | None) -> str:
    """Numbers from 1 on in the order of the scores, which TVM wants to be positive; 0 where one is too low."""
    shape = b.graph.static_shape(scores)
    if shape is None:
        raise UnsupportedError(
            f"no Relax equivalent for NonMaxSuppression without a score_threshold of at least 0, of open sizes (node "
            f"`{b.old.name or b.old.output[0]}`): TVM suppresses no boxes of negative scores; fix the sizes"
        )
    count = b.graph.add_constant(f"{b.old.output[0]}_count", np.array([shape[-1]]))
    order, place = scores, ""
    for largest in (1, 0):  # the places of the sorted scores, then where each score went
        values, place = (b.graph.fresh(f"{b.old.output[0]}_{name}") for name in ("sorted", "places"))
        how = {"largest": 0} if not largest else {}
        b.nodes.append(onnx.helper.make_node("TopK", [order, count], [values, place], axis=-1, **how))
        order = place
    rank = b.add("Cast", [b.add("Sub", [count, place])], to=onnx.TensorProto.FLOAT)
    if least is None:
        return rank
    kept = b.add("Greater", [scores, b.graph.add_constant(f"{b.old.output[0]}_least", np.asarray(least))])
    return b.add("Where", [kept, rank, b.graph.add_constant(f"{b.old.output[0]}_zero", np.array(0, "float32"))])


RULES = {("", "NonMaxSuppression"): _suppression}
