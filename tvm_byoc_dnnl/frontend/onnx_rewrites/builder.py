"""Makes the nodes that replace one old node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..onnx_graph import Graph
from ..onnx_nodes import attributes

Nodes = list[onnx.NodeProto]
#: The doc string of nodes that no rule looks at again; it goes with them into copies.
SETTLED = "settled by tvm_byoc_dnnl"


class Builder:
    """Nodes in the making for one old node.

    Attributes
    ----------
    inputs : list of str
        The old node's inputs, followed by empty names for the optional ones it leaves out.
    attrs : dict
        The old node's attributes.
    nodes : list of NodeProto
        What has been made.
    """

    def __init__(self, graph: Graph, node: onnx.NodeProto) -> None:
        self.graph, self.old = graph, node
        self.nodes: Nodes = []
        self.inputs = [*node.input, *[""] * 12]
        self.attrs = attributes(node)

    def add(self, op: str, inputs: Sequence[str], output: str | None = None, **attrs: Any) -> str:
        """A node of a standard operator; returns the name of its result."""
        result = output or self.graph.fresh(f"{self.old.output[0]}_{op}")
        self.nodes.append(helper.make_node(op, list(inputs), [result], **attrs))
        return result

    def settle(self, node: onnx.NodeProto | None = None) -> None:
        """Let no rule look at a node, the last one made, again: what would have to be changed has been."""
        (self.nodes[-1] if node is None else node).doc_string = SETTLED

    def number(self, value: float, like: str) -> str:
        """A scalar constant of the dtype of ``like`` (float32 when that is unknown)."""
        kind = self.graph.elem_type(like) or onnx.TensorProto.FLOAT
        array = np.array(value, helper.tensor_dtype_to_np_dtype(kind))
        return self.graph.add_constant(f"{self.old.output[0]}_number", array)

    def ints(self, values: Sequence[int]) -> str:
        """An int64 vector as a constant."""
        return self.graph.add_constant(f"{self.old.output[0]}_ints", np.array(values, "int64"))
