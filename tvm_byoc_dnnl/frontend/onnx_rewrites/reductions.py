"""Reductions that TVM has no start value for, or that its importer leaves out or gives another type."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import FLOATS, INTEGERS


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
#: What TVM does not start from.
_LIMITS = {"ReduceMax": -math.inf, "ReduceMin": math.inf}
_LARGEST = {
    TensorProto.FLOAT16: float(np.finfo("float16").max),
    TensorProto.BFLOAT16: (2 - 2**-7) * 2.0**127,
    TensorProto.FLOAT: float(np.finfo("float32").max),
    TensorProto.DOUBLE: float(np.finfo("float64").max),
}
#: What a reduction does to each element where it reduces nothing; the others do nothing.
_OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log"}


def _reduction(graph: Graph, node: onnx.NodeProto, op: str) -> Nodes | None:
    b = Builder(graph, node)
    if b.attrs.get("noop_with_empty_axes") and _has_no_axes(graph, b):
        return _of_each(b, op)
    shape, out = graph.static_shape(node.input[0]), graph.static_shape(node.output[0])
    kind = graph.elem_type(node.input[0])
    if shape is not None and out is not None and 0 in shape and 0 not in out and kind and op in _OF_NOTHING:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        value = np.full(out, _OF_NOTHING[op](dtype), dtype)
        b.add("Identity", [graph.add_constant(f"{node.output[0]}_of_nothing", value)], node.output[0])
        return b.nodes
    if kind == TensorProto.BOOL and op in ("ReduceMax", "ReduceMin"):
        number = b.add("Cast", [node.input[0]], to=TensorProto.INT32)
        b.add("Cast", [b.add(op, [number, *node.input[1:]], **b.attrs)], node.output[0], to=TensorProto.BOOL)
        return b.nodes
    if kind in FLOATS and op in _LIMITS:
        return _extreme(b, op)
    if kind in INTEGERS and op == "ReduceMean":
        return _mean_of_integers(b, kind, shape, out)
    return None


def _extreme(b: Builder, op: str) -> Nodes | None:
    """The largest of nothing but −∞ is the lowest finite number for TVM, and for libraries.

    Where all that reads it subtracts it from the same tensor, as a softmax does, ∞ − ∞ is no number either way.
    """
    graph, x = b.graph, b.old.input[0]
    readers, is_output = graph.read_by(b.old.output[0])
    if readers and not is_output and all(r.op_type == "Sub" and list(r.input) == [x, b.old.output[0]] for r in readers):
        return None
    limit, zero = b.number(_LIMITS[op], like=x), graph.add_constant(f"{b.old.output[0]}_zero", np.array(0, "float32"))
    if graph.opset >= 11:
        other = b.add("Not", [b.add("Equal", [x, limit])])  # also a NaN
    else:
        other = b.add("Greater" if op == "ReduceMax" else "Less", [x, limit])
    results = []
    for name, data, kind in (("any", b.add("Cast", [other], to=TensorProto.FLOAT), "ReduceMax"), ("found", x, op)):
        reduction = onnx.NodeProto()
        reduction.CopyFrom(b.old)
        reduction.op_type, reduction.input[0], reduction.output[0] = (
            kind,
            data,
            graph.fresh(f"{b.old.output[0]}_{name}"),
        )
        reduction.name = reduction.output[0]
        b.settle(reduction)
        b.nodes.append(reduction)
        results.append(reduction.output[0])
    finite = _LARGEST[graph.elem_type(x)]
    start = b.number(-finite if op == "ReduceMax" else finite, like=x)
    found = b.add(op.removeprefix("Reduce"), [start, results[1]])  # ∞ alone where it is beside a NaN
    b.add("Where", [b.add("Greater", [results[0], zero]), found, limit], b.old.output[0])
    return b.nodes


def _has_no_axes(graph: Graph, b: Builder) -> bool:
    """Whether a node surely names no axes; one that may be without them depends on the call."""
    return not b.inputs[1] or graph.dims(b.inputs[1]) == (0,)


def _of_each(b: Builder, op: str) -> Nodes:
    """No axes and nothing to reduce: each element by itself."""
    x, y = b.old.input[0], b.old.output[0]
    if op == "ReduceSumSquare":
        b.add("Mul", [x, x], y)
    else:
        b.add(_OF_ONE.get(op, "Identity"), [x], y)
    return b.nodes


def _mean_of_integers(b: Builder, kind: int, shape: tuple[int, ...] | None, out: tuple[int, ...] | None) -> Nodes:
    """Cut towards zero; TVM's mean of integers has another type."""
    if shape is None or out is None:
        raise UnsupportedError(
            f"no Relax equivalent for ReduceMean of integers whose sizes are open (node "
            f"`{b.old.name or b.old.output[0]}`); cast to float in front of it, or fix the sizes"
        )
    wide = b.add("Cast", [b.old.input[0]], to=TensorProto.INT64)
    axes = [b.inputs[1]] if b.inputs[1] else []
    if 13 <= b.graph.opset < 18 and "axes" in b.attrs:  # an input of ReduceSum already
        axes = [b.ints(b.attrs.pop("axes"))]
    total = b.add("ReduceSum", [wide, *axes], **b.attrs)
    many = np.array(max(1, math.prod(shape) // max(1, math.prod(out))))
    count = b.graph.add_constant(f"{b.old.output[0]}_count", many)
    b.add("Cast", [b.add("Div", [total, count])], b.old.output[0], to=kind)
    return b.nodes


RULES = {("", op): partial(_reduction, op=op) for op in (*_OF_NOTHING, "ReduceMean")}
