"""A range of real numbers between integers: ``Range(0.0, Cast(n), 1.0)`` is ``Cast(Range(0, n, 1))``.

Detectors count the cells of a picture so. The length of a range of integers is known, also as an expression of open
sizes. (Beyond 2²⁴ not every integer is a real number of 32 bits; no tensor has an axis of that length.)
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from ..onnx_graph import Graph
from ..onnx_nodes import attributes
from .builder import Builder, Nodes

_REALS = (TensorProto.FLOAT, TensorProto.DOUBLE)
_MOST = 1 << 24


def _range(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    kind = graph.elem_type(node.input[0])
    if kind not in _REALS:
        return None
    b = Builder(graph, node)
    makers = {made.output[0]: made for made in graph.nodes if made.op_type == "Cast" and made.output[0] in node.input}
    whole = [_integer(b, name, makers.get(name)) for name in node.input]
    if any(name is None for name in whole):
        return None
    counted = b.add("Range", [name for name in whole if name is not None])
    b.add("Cast", [counted], node.output[0], to=kind)
    return b.nodes


def _integer(b: Builder, name: str, cast: onnx.NodeProto | None) -> str | None:
    """A number of type int64 with the same value, if the real number is a whole one."""
    value = b.graph.constant(name)
    if value is not None:
        number = float(value.reshape(-1)[0])
        if not (number.is_integer() and abs(number) <= _MOST):
            return None
        return b.graph.add_constant(f"{name}_whole", np.array(int(number), "int64"))
    if cast is None or attributes(cast)["to"] not in _REALS:
        return None
    given = b.graph.elem_type(cast.input[0])
    if given == TensorProto.INT64:
        return cast.input[0]
    return b.add("Cast", [cast.input[0]], to=TensorProto.INT64) if given == TensorProto.INT32 else None


RULES = {("", "Range"): _range}
