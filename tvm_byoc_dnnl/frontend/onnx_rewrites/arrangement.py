"""Operators that only move elements, where the importer moves others than ONNX."""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _split(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Into parts of which some are empty: one slice each, since TVM wants bounds that grow."""
    b = Builder(graph, node)
    sizes = graph.constant(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if sizes is None or 0 not in sizes:
        return None
    axis = b.ints([b.attrs.get("axis", 0)])
    ends = np.cumsum(sizes).tolist()
    for start, end, output in zip([0, *ends], ends, node.output, strict=False):
        b.add("Slice", [node.input[0], b.ints([start]), b.ints([end]), axis], output)
    return b.nodes


RULES = {("", "Split"): _split}
