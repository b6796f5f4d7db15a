"""The operators of arithmetic on shapes, computed by NumPy: to import ONNX's reference implementation takes longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..onnx_nodes import attributes

__all__ = ["evaluated"]

Attributes = dict[str, Any]
Arrays = Sequence["np.ndarray | None"]
_PLAIN = frozenset({"bool", "int32", "int64", "float32", "float64"})


def evaluated(node: onnx.NodeProto, inputs: Arrays) -> np.ndarray | None:
    """The one result of a standard node; ``None`` where ONNX's reference has to be asked.

    Parameters
    ----------
    node : NodeProto
        The node.
    inputs : sequence of ndarray
        The values of its inputs, ``None`` for those that it leaves out.
    """
    compute = _COMPUTE.get(node.op_type)
    given = [array for array in inputs if array is not None]
    if compute is None or len(node.output) != 1 or not all(str(array.dtype) in _PLAIN for array in given):
        return None
    try:
        return compute(attributes(node), inputs)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):  # broken: the reference says what is wrong
        return None


def _cast(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    target = helper.tensor_dtype_to_np_dtype(attrs["to"])
    return _first(inputs).astype(target) if str(target) in _PLAIN else None


def _concat(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    arrays = [array for array in inputs if array is not None]
    alike = len({array.dtype for array in arrays}) == 1
    return np.concatenate(arrays, axis=attrs["axis"]) if alike else None


def _gather(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, indices = inputs
    if source is None or indices is None or indices.dtype.kind != "i":
        return None
    return np.asarray(np.take(source, indices, axis=attrs.get("axis", 0)))


def _slice(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, *rest = inputs
    if source is None or len(rest) < 2:  # before opset 10 the bounds are attributes
        return None
    starts, stops, axes, steps = [None if a is None else a.reshape(-1).tolist() for a in (*rest, None, None)[:4]]
    if starts is None or stops is None:
        return None
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    cuts = [slice(None)] * source.ndim
    for axis, *bounds in zip(axes, starts, stops, steps, strict=True):
        cuts[axis] = slice(*bounds)
    return np.ascontiguousarray(source[tuple(cuts)])


def _transpose(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    return np.ascontiguousarray(np.transpose(_first(inputs), attrs.get("perm")))


def _unsqueeze(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, *rest = inputs
    axes = rest[0].reshape(-1).tolist() if rest and rest[0] is not None else attrs["axes"]
    return None if source is None else np.expand_dims(source, tuple(axes))


def _squeeze(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, *rest = inputs
    axes = rest[0].reshape(-1).tolist() if rest and rest[0] is not None else attrs.get("axes")
    return None if source is None else np.squeeze(source, None if axes is None else tuple(axes))


def _reshape(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, shape = inputs
    if source is None or shape is None or attrs.get("allowzero", 0):
        return None
    return source.reshape([source.shape[i] if d == 0 else d for i, d in enumerate(shape.tolist())])


def _range(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    start, stop, step = (_first([array]) for array in inputs)
    return np.arange(start.item(), stop.item(), step.item()).astype(start.dtype)


def _expand(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    source, shape = _first(inputs), _first(inputs[1:])
    return np.ascontiguousarray(np.broadcast_to(source, np.broadcast_shapes(source.shape, tuple(shape.tolist()))))


def _fill(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
    value = numpy_helper.to_array(attrs["value"]) if "value" in attrs else np.zeros(1, "float32")
    return np.full(_first(inputs).tolist(), value.reshape(()), value.dtype)


def _binary(operator: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Attributes, Arrays], Any]:
    def compute(attrs: Attributes, inputs: Arrays) -> np.ndarray | None:
        a, b = inputs
        if attrs or a is None or b is None or a.dtype != b.dtype or a.dtype.kind not in "if":
            return None
        return np.asarray(operator(a, b))

    return compute


def _first(inputs: Arrays) -> np.ndarray:
    if inputs[0] is None:
        raise ValueError("an input that is left out")
    return inputs[0]


_COMPUTE: dict[str, Callable[[Attributes, Arrays], np.ndarray | None]] = {
    "Add": _binary(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _fill,
    "Expand": _expand,
    "Gather": _gather,
    "Mul": _binary(np.multiply),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _binary(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
