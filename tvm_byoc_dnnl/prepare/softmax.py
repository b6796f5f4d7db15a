"""Softmax spelled out, and softmax over an axis that a reshape made.

e = exp(x - max(x));  e / sum(e)           nn.softmax (also without the max)
reshape(softmax(reshape(x, (A, B))))       nn.softmax of x, when B is one axis of x: ONNX before opset 13
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from .rewrite import Rules, Scope


def _axis(scope: Scope, call: Any) -> int | None:
    """The one axis of a reduction that keeps its dims."""
    rank = scope.rank(call.args[0])
    if call.attrs.axis is None or len(call.attrs.axis) != 1 or not call.attrs.keepdims or rank < 0:
        return None
    return int(call.attrs.axis[0]) % rank


def _spelled_out(scope: Scope, divide: Any) -> Any:
    numerator, denominator = divide.args
    exp, total = scope.call(numerator, "relax.exp"), scope.call(denominator, "relax.sum")
    if exp is None or total is None or not total.args[0].same_as(numerator):
        return None
    axis = _axis(scope, total)
    if axis is None or not scope.same_shape(exp, divide):
        return None
    x, interior = exp.args[0], [numerator, denominator]
    shifted = scope.call(x, "relax.subtract")
    largest = None if shifted is None else scope.call(shifted.args[1], "relax.max")
    if shifted is not None and largest is not None and largest.args[0].same_as(shifted.args[0]):
        if _axis(scope, largest) != axis:
            return None
        interior += [x, shifted.args[1]]
        x = shifted.args[0]
    return relax.op.nn.softmax(x, axis=axis) if scope.only_inside(interior, divide) else None


def _reshaped(scope: Scope, reshape: Any) -> Any:
    softmax = scope.call(reshape.args[0], "relax.nn.softmax", "relax.nn.log_softmax")
    inner = None if softmax is None else scope.call(softmax.args[0], "relax.reshape")
    if softmax is None or inner is None or not scope.only_inside([reshape.args[0], softmax.args[0]], reshape):
        return None
    shape, flat = scope.shape(inner.args[0]), scope.shape(inner)
    if shape is None or flat is None or scope.shape(reshape) != shape or not flat:
        return None
    axis = int(softmax.attrs.axis) % len(flat)
    wide = _one_axis(shape, math.prod(flat[:axis]), flat[axis])
    if wide is None:
        return None
    make = relax.op.nn.softmax if softmax.op.name == "relax.nn.softmax" else relax.op.nn.log_softmax
    return make(inner.args[0], axis=wide)


def _one_axis(shape: tuple[int, ...], before: int, size: int) -> int | None:
    """The axis of ``shape`` with ``size`` elements and ``before`` elements in front of it."""
    for axis, dim in enumerate(shape):
        if dim == size and math.prod(shape[:axis]) == before:
            return axis
    return None


RULES: Rules = {"relax.divide": [_spelled_out], "relax.reshape": [_reshaped]}
