"""Softmax written as arithmetic, over an axis that a reshape made, or guarded against rows of -inf.

    e = exp(x - max(x));  e / sum(e)           also without the max
    reshape(softmax(reshape(x, (A, B))))       when B is one axis of x: ONNX before opset 13
    where(all of x is -inf, 0, softmax(x))     when no row of x can be: PyTorch's attention
    where(isnan(softmax(x)), 0, softmax(x))    the same, as PyTorch exports it to ONNX

All of them are ``nn.softmax`` of x. Where a mask is known only at run time a guard becomes ``nn.relu``: a row of -inf
gives NaN, a softmax is not negative, and relu turns a NaN into 0 (see `clip`, also for scores that are NaN themselves).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from .norms import reduced_axes
from .rewrite import Rules, Scope


def _axis(scope: Scope, call: Any) -> int | None:
    """The one axis of a reduction that keeps its dims."""
    axes = reduced_axes(scope, call) or ()
    return axes[0] if len(axes) == 1 else None


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
            axes = None if largest.attrs.axis is None else [int(a) for a in largest.attrs.axis]
            return scope.miss("softmax", f"the sum is over axis {axis}, the maximum over {axes}")
        interior += [x, shifted.args[1]]
        x = shifted.args[0]
    if not scope.only_inside(interior, divide):
        return scope.miss("softmax", "a part of it is read elsewhere, too")
    return relax.op.nn.softmax(x, axis=axis)


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
    for axis, dim in enumerate(shape):
        if dim == size and math.prod(shape[:axis]) == before:
            return axis
    return None


def _operand(scope: Scope, expr: Any, *ops: str) -> Any:
    """First operand at the end of a chain of calls of ``ops``, outermost first; ``None`` when it is another."""
    for op in ops:
        call = None if expr is None else scope.call(expr, op)
        expr = None if call is None else call.args[0]
    return expr


_ANY = ("relax.logical_not", "relax.astype")  # PyTorch's any(): the largest of the flags as int8


def _guarded(scope: Scope, where: Any) -> Any:
    """Drop the guard against rows that a mask hides completely; where there may be such rows, use ``nn.relu``."""
    guard, zero, result = where.args
    softmax = scope.call(result, "relax.nn.softmax")
    if softmax is None or not _is_zero(scope, zero) or not scope.same_shape(result, where):
        return None
    axis = int(softmax.attrs.axis) % scope.rank(softmax)
    isnan = scope.call(guard, "relax.isnan")
    is_guard = _hides_all(scope, guard, softmax.args[0], axis) if isnan is None else isnan.args[0].same_as(result)
    if not is_guard:
        return None
    return result if _some_finite(scope, softmax.args[0], axis) else relax.op.nn.relu(result)


def _is_zero(scope: Scope, expr: Any) -> bool:
    """Whether a tensor is all zeros, of any size: large fills are not folded."""
    fill = scope.call(expr, "relax.full_like", "relax.full", "relax.zeros", "relax.zeros_like")
    if fill is None:
        return scope.scalar(expr) == 0.0
    return "zeros" in fill.op.name or scope.scalar(fill.args[1]) == 0.0


def _hides_all(scope: Scope, guard: Any, scores: Any, axis: int) -> bool:
    """Whether ``guard`` says which rows of ``scores`` along ``axis`` are -inf altogether."""
    largest = scope.call(_operand(scope, guard, *_ANY), "relax.max")
    hidden = _operand(scope, guard, *_ANY, "relax.max", "relax.astype", "relax.logical_not")
    equal = scope.call(hidden, "relax.equal")
    if largest is None or equal is None or scope.scalar(equal.args[1]) != -math.inf:
        return False
    return bool(equal.args[0].same_as(scores)) and _axis(scope, largest) == axis


def _some_finite(scope: Scope, expr: Any, axis: int) -> bool:
    """Whether every row along ``axis`` has an element that no mask sets to -inf: scores, scaled, plus constants."""
    call = scope.call(expr, "relax.add", "relax.multiply", "relax.divide", "relax.reshape", "relax.matmul")
    if call is None:
        return False
    if call.op.name in ("relax.matmul", "relax.reshape"):  # PyTorch's bmm has one batch axis, so there is a view
        return scope.call(expr if call.op.name == "relax.matmul" else call.args[0], "relax.matmul") is not None
    for data, constant in (call.args, reversed(call.args)):
        mask = scope.const(constant)
        if mask is None or not scope.same_shape(data, call):
            continue
        if call.op.name != "relax.add":
            number = scope.scalar(constant)
            return number is not None and math.isfinite(number) and _some_finite(scope, data, axis)
        along = axis - scope.rank(call) + mask.ndim
        hidden = np.isneginf(mask)
        hidden = hidden.all(axis=along) if along >= 0 else hidden
        return not hidden.any() and _some_finite(scope, data, axis)
    return False


RULES: Rules = {"relax.where": [_guarded], "relax.divide": [_spelled_out], "relax.reshape": [_reshaped]}
