"""Operators of object detection."""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Nodes

_DONE = "_next_threshold"


def _suppression(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """ONNX drops boxes that overlap by more than the threshold, TVM also those that overlap by just as much."""
    name = node.input[3] if len(node.input) > 3 else ""
    threshold = graph.constant(name) if name else None
    if threshold is None or _DONE in name:
        return None
    new = onnx.NodeProto()
    new.CopyFrom(node)
    new.input[3] = graph.fresh(f"{name}{_DONE}")
    graph.set_constant(new.input[3], np.nextafter(threshold, np.array(np.inf, threshold.dtype)))
    return [new]


RULES = {("", "NonMaxSuppression"): _suppression}
