"""Operators that only move elements, where the importer moves others than ONNX."""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _space_to_depth(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The importer knows the mode DCR alone."""
    b = Builder(graph, node)
    shape = graph.static_shape(node.input[0])
    if b.attrs.get("mode", "DCR") != "CRD" or shape is None:
        return None
    size, (n, c, h, w) = b.attrs["blocksize"], shape
    split = b.add("Reshape", [node.input[0], b.ints([n, c, h // size, size, w // size, size])])
    moved = b.add("Transpose", [split], perm=[0, 1, 3, 5, 2, 4])
    b.add("Reshape", [moved, b.ints([n, c * size * size, h // size, w // size])], node.output[0])
    return b.nodes


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


RULES = {("", "SpaceToDepth"): _space_to_depth, ("", "Split"): _split}
