"""Rows of an attention mask that hide everything.

The largest of nothing but −∞ is the lowest finite number for TVM, and for libraries; `Attention` compares it with −∞.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from ..onnx_nodes import is_standard
from .builder import Builder, Nodes


def _is_lowest(graph: Graph, name: str) -> bool:
    value = graph.constant(name)
    return value is not None and value.size == 1 and bool(np.isneginf(value.astype("float64")).all())


def _equal(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """``max(x) == −∞``: all elements are −∞; false if one is NaN."""
    makers = {output: maker for maker in graph.nodes for output in maker.output}
    for name, other in (tuple(node.input), tuple(node.input)[::-1]):
        maker = makers.get(name)
        if maker is None or maker.op_type != "ReduceMax" or not is_standard(maker) or not _is_lowest(graph, other):
            continue
        b = Builder(graph, node)
        is_lowest = b.add("Equal", [maker.input[0], other])
        is_more = b.add("Cast", [b.add("Not", [is_lowest])], to=onnx.TensorProto.INT32)
        any_more = graph.fresh(f"{node.output[0]}_ReduceMax")
        reduction = onnx.NodeProto()
        reduction.CopyFrom(maker)
        reduction.input[0], reduction.output[0] = is_more, any_more
        reduction.name = any_more
        b.nodes.append(reduction)
        b.add("Not", [b.add("Cast", [any_more], to=onnx.TensorProto.BOOL)], node.output[0])
        return b.nodes
    return None


RULES = {("", "Equal"): _equal}
