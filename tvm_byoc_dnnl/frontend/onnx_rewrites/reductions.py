"""Reductions for which TVM has no start value: of no elements, and of truth values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _lowest(dtype: np.dtype) -> float | int | bool:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    return False if dtype.kind == "b" else -math.inf


def _highest(dtype: np.dtype) -> float | int | bool:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return True if dtype.kind == "b" else math.inf


#: The result of a reduction of no elements, by dtype; a mean of no elements is left to the importer.
_OF_NOTHING: dict[str, Callable[[np.dtype], float | int | bool]] = {
    **{f"Reduce{kind}": lambda _: 0 for kind in ("Sum", "SumSquare", "L1", "L2")},
    **{f"Reduce{kind}": lambda _: -math.inf for kind in ("LogSum", "LogSumExp")},
    "ReduceProd": lambda _: 1,
    "ReduceMax": _lowest,
    "ReduceMin": _highest,
}


def _reduction(graph: Graph, node: onnx.NodeProto, op: str) -> Nodes | None:
    shape, out = graph.static_shape(node.input[0]), graph.static_shape(node.output[0])
    kind = graph.elem_type(node.input[0])
    b = Builder(graph, node)
    if shape is not None and out is not None and 0 in shape and 0 not in out and kind:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        value = np.full(out, _OF_NOTHING[op](dtype), dtype)
        b.add("Identity", [graph.add_constant(f"{node.output[0]}_of_nothing", value)], node.output[0])
        return b.nodes
    if kind == TensorProto.BOOL and op in ("ReduceMax", "ReduceMin"):
        number = b.add("Cast", [node.input[0]], to=TensorProto.INT32)
        b.add("Cast", [b.add(op, [number, *node.input[1:]], **b.attrs)], node.output[0], to=TensorProto.BOOL)
        return b.nodes
    return None


RULES = {("", op): partial(_reduction, op=op) for op in _OF_NOTHING}
