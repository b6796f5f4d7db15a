"""Types of values with static shapes, by the rules of the commonest operators.

ONNX's own inference lists all of its operators when a process first asks it (10 ms), and infers whole models. A few
questions about ``Shape`` need the operators in front of it only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from .onnx_nodes import OLDEST_OPSET, attributes, is_standard

__all__ = ["RULES", "StaticType", "static_type"]

#: element type of ONNX and shape
StaticType = tuple[int, tuple[int, ...]]
Attributes = Mapping[str, Any]


class Constants(Protocol):
    """What the rules ask a graph."""

    opset: int

    def is_constant(self, name: str) -> bool:
        """Whether a value is known."""

    def constant(self, name: str) -> np.ndarray | None:
        """Such a value."""

    def static_shape(self, name: str) -> tuple[int, ...] | None:
        """Its shape."""

    def elem_type(self, name: str) -> int:
        """Its element type of ONNX."""


#: graph, node, its attributes, types of its inputs (none for an input that is left out) → types of its first results
Rule = Callable[[Constants, onnx.NodeProto, Attributes, Sequence[Any]], Sequence[StaticType] | None]

_BOOL, _INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.INT64


def static_type(
    graph: Constants, name: str, makers: Mapping[str, onnx.NodeProto], known: dict[str, StaticType]
) -> StaticType | None:
    """Element type and shape of a value; ``None`` if the rules here do not tell them.

    Parameters
    ----------
    graph : Constants
        The graph.
    name : str
        The value.
    makers : mapping
        Name of a value → the node that computes it.
    known : dict
        Name → type, of inputs and constants as well; what is found on the way is added.
    """
    if graph.opset < OLDEST_OPSET:
        return None
    waiting, begun = [name], set()
    while waiting:
        top = waiting[-1]
        node = makers.get(top)
        if top in known:
            waiting.pop()
            continue
        if node is None or node.op_type not in RULES or not is_standard(node):
            return None
        missing = [i for i in node.input if i and i not in known and not _from_constant(graph, i, known)]
        if missing:
            if top in begun:
                return None  # a cycle
            begun.add(top)
            waiting += missing
        elif not _from_rule(graph, node, known) or top not in known:
            return None
    return known[name]


def _from_constant(graph: Constants, name: str, known: dict[str, StaticType]) -> bool:
    """Add the type of a constant; whether it is one."""
    if graph.is_constant(name):
        known[name] = (graph.elem_type(name), graph.static_shape(name) or ())
    return name in known


def _from_rule(graph: Constants, node: onnx.NodeProto, known: dict[str, StaticType]) -> bool:
    """Add the types of a node's results; whether its rule tells them."""
    try:
        types = RULES[node.op_type](graph, node, attributes(node), [known.get(name) for name in node.input])
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):  # broken: ONNX says what is wrong
        types = None
    known.update((name, kind) for name, kind in zip(node.output, types or (), strict=False) if name)
    return types is not None


# ---- rules ------------------------------------------------------------------------------------------


def _same(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return types[:1]


def _cast(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return [(attrs["to"], types[0][1])]


def _broadcast(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return [(types[0][0], np.broadcast_shapes(*(shape for _, shape in types)))]


def _compared(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return [(_BOOL, np.broadcast_shapes(*(shape for _, shape in types)))]


def _where(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return [(types[1][0], np.broadcast_shapes(*(shape for _, shape in types)))]


def _matmul(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    (dtype, a), (_, b) = types
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return [(dtype, (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]))]


def _gemm(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    (dtype, a), (_, b) = types[:2]
    a, b = a[:: -1 if attrs.get("transA", 0) else 1], b[:: -1 if attrs.get("transB", 0) else 1]
    return [(dtype, (a[0], b[1]))] if len(a) == len(b) == 2 and a[1] == b[0] else None


def _conv(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    (dtype, data), (_, weights) = types[:2]
    spatial = _windows(data[2:], weights[2:], attrs)
    return None if spatial is None else [(dtype, (data[0], weights[0], *spatial))]


def _pool(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, data = types[0]
    spatial = _windows(data[2:], attrs["kernel_shape"], attrs)
    return None if spatial is None else [(dtype, (*data[:2], *spatial))]


def _windows(sizes: Sequence[int], kernel: Sequence[int], attrs: Attributes) -> list[int] | None:
    """How many windows fit along each axis, as the standard says of Conv."""
    rank, padding = len(sizes), attrs.get("auto_pad", "NOTSET")
    if attrs.get("ceil_mode", 0) or not rank == len(kernel) > 0:
        return None  # the exceptions of the first are left to ONNX
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    if padding in ("SAME_LOWER", "SAME_UPPER"):
        return [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    pads = attrs.get("pads", [0] * 2 * rank) if padding == "NOTSET" else [0] * 2 * rank
    room = [
        size + before + after - (extent - 1) * dilation - 1
        for size, before, after, extent, dilation in zip(
            sizes, pads[:rank], pads[rank:], kernel, dilations, strict=True
        )
    ]
    return None if min(room) < 0 else [r // stride + 1 for r, stride in zip(room, strides, strict=True)]


def _global_pool(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, data = types[0]
    return [(dtype, (*data[:2], *[1] * len(data[2:])))]


def _recurrent(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    (dtype, data), (_, weights), (_, hidden) = types[:3]
    if attrs.get("layout", 0) or len(data) != 3 or len(hidden) != 3:
        return None
    state = (weights[0], data[1], hidden[2])
    return [(dtype, (data[0], *state)), (dtype, state), (dtype, state)][: 3 if node.op_type == "LSTM" else 2]


def _concat(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    axis = range(len(shape))[attrs["axis"]]
    rests = {(*s[:axis], *s[axis + 1 :]) for _, s in types}
    return [(dtype, _with_dim(shape, axis, sum(s[axis] for _, s in types)))] if len(rests) == 1 else None


def _split(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    axis, parts = range(len(shape))[attrs.get("axis", 0)], len(node.output)
    given = len(node.input) > 1
    sizes = _numbers(graph, node, 1) if given else attrs.get("split")
    if sizes is None and not given:
        whole = -(-shape[axis] // parts)
        sizes = [whole] * (parts - 1) + [shape[axis] - whole * (parts - 1)]
    if sizes is None or len(sizes) != parts or sum(sizes) != shape[axis] or min(sizes) < 0:
        return None
    return [(dtype, _with_dim(shape, axis, size)) for size in sizes]


def _transpose(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    order = attrs.get("perm", list(reversed(range(len(shape)))))
    return [(dtype, tuple(shape[axis] for axis in order))] if sorted(order) == list(range(len(shape))) else None


def _reshape(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    wanted = _numbers(graph, node, 1)
    if wanted is None or attrs.get("allowzero", 0) or 0 in shape:
        return None
    dims = [shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if -1 in dims:
        dims[dims.index(-1)] = math.prod(shape) // -math.prod(dims)
    return [(dtype, tuple(dims))] if min(dims, default=0) >= 0 and math.prod(dims) == math.prod(shape) else None


def _unsqueeze(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    axes = _axes(graph, node, attrs) or ()
    rank = len(shape) + len(axes)
    added, rest = {range(rank)[axis] for axis in axes}, iter(shape)
    if not added or len(added) < len(axes):
        return None
    return [(dtype, tuple(1 if axis in added else next(rest) for axis in range(rank)))]


def _squeeze(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    axes = _axes(graph, node, attrs)
    dropped = {range(len(shape))[axis] for axis in axes or ()}
    if not dropped or any(shape[axis] != 1 for axis in dropped):
        return None
    return [(dtype, tuple(dim for axis, dim in enumerate(shape) if axis not in dropped))]


def _reduce(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    axes = _axes(graph, node, attrs)
    if not axes:  # all of them, or none: an attribute decides
        return None
    reduced = {range(len(shape))[axis] for axis in axes}
    if attrs.get("keepdims", 1):
        return [(dtype, tuple(1 if axis in reduced else dim for axis, dim in enumerate(shape)))]
    return [(dtype, tuple(dim for axis, dim in enumerate(shape) if axis not in reduced))]


def _slice(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    bounds = [_numbers(graph, node, position) for position in range(1, len(node.input))]
    if len(bounds) < 2 or any(b is None for b, name in zip(bounds, node.input[1:], strict=True) if name):
        return None  # before opset 10 the bounds are attributes
    starts, stops, axes, steps = (*bounds, None, None)[:4]
    dims = list(shape)
    count = len(starts or ())
    for start, stop, axis, step in zip(
        starts or (), stops or (), axes or range(count), steps or [1] * count, strict=True
    ):
        dims[axis] = len(range(*slice(start, stop, step).indices(shape[axis])))
    return [(dtype, tuple(dims))]


def _gather(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    (dtype, shape), (_, indices) = types
    axis = range(len(shape))[attrs.get("axis", 0)]
    return [(dtype, (*shape[:axis], *indices, *shape[axis + 1 :]))]


def _pad(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    pads = _numbers(graph, node, 1) if len(node.input) > 1 else attrs.get("pads")
    names_axes = len(node.input) > 3 and node.input[3]
    if pads is None or names_axes or len(pads) != 2 * len(shape):
        return None
    dims = tuple(b + dim + a for dim, b, a in zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True))
    return [(dtype, dims)] if min(dims, default=0) >= 0 else None


def _resize(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dtype, shape = types[0]
    special = attrs.keys() & {"axes", "keep_aspect_ratio_policy"}
    if special or attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    sizes = _numbers(graph, node, 3)
    if sizes is not None:
        return [(dtype, tuple(sizes))] if len(sizes) == len(shape) else None
    scales = graph.constant(node.input[1 if len(node.input) == 2 else 2])
    if scales is None or scales.shape != (len(shape),):
        return None
    return [(dtype, tuple(math.floor(d) for d in np.float32(shape) * np.float32(scales)))]


def _fill(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    dims = _numbers(graph, node, 0)
    dtype = attrs["value"].data_type if "value" in attrs else onnx.TensorProto.FLOAT
    return None if dims is None or min(dims, default=0) < 0 else [(dtype, tuple(dims))]


def _expand(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    wanted = _numbers(graph, node, 1)
    return None if wanted is None else [(types[0][0], np.broadcast_shapes(types[0][1], tuple(wanted)))]


def _range(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    bounds = [graph.constant(name) for name in node.input]
    if any(bound is None for bound in bounds):
        return None
    start, stop, step = (bound.item() for bound in bounds if bound is not None)
    return [(types[0][0], (max(0, math.ceil((stop - start) / step)),))]


def _shape(graph: Constants, node: onnx.NodeProto, attrs: Attributes, types: Sequence[Any]) -> Any:
    return [(_INT64, (len(types[0][1][attrs.get("start", 0) : attrs.get("end")]),))]


def _axes(graph: Constants, node: onnx.NodeProto, attrs: Attributes) -> list[int] | None:
    """The axes that an attribute, or a constant second input, gives."""
    return _numbers(graph, node, 1) if len(node.input) > 1 else attrs.get("axes")


def _numbers(graph: Constants, node: onnx.NodeProto, position: int) -> list[int] | None:
    """The integers of a constant input."""
    name = node.input[position] if position < len(node.input) else ""
    value = graph.constant(name) if name else None
    return None if value is None else [int(number) for number in value.reshape(-1)]


def _with_dim(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


_SAME = (
    *("Abs", "BatchNormalization", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish"),
    *("Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not"),
    *("Reciprocal", "Relu", "Selu", "Sigmoid", "Sin", "Softmax", "Softplus", "Sqrt", "Tanh"),
)
_REDUCTIONS = ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")

#: operator → rule
RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Sum"), _broadcast),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"), _compared),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _fill,
    "Conv": _conv,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
