"""Long tables of positions along an axis, as one gather.

    pad(reflect, 0, 64)                      concat(x, take(indices: n - 2, n - 3 … n - 65))
    flip                            ──>      take(indices: n - 1 … 0)
    strided_slice(step -1)                   take(indices: begin, begin - 1 …)

`shape.py` makes a few slices of such an operator. Where these would be too many, there is a `take` with a constant
table instead, which is a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...vendor import Reject, Scope, rewrite_pass
from .common import ints
from .shape import PADDED, backwards, int_tuple, is_long, padded_sides


def _taken(scope: Scope, data: Any, axis: int, table: Sequence[int]) -> Any:
    return relax.op.take(data, scope.constant(np.array(table, "int64")), axis=axis, mode="clip")


def _pad(scope: Scope, call: Any) -> Any:
    """A padding with the tensor's own elements."""
    data, mode, dims = call.args[0], str(call.attrs.pad_mode), scope.dims(call.args[0])
    widths = ints(call.attrs.pad_width)
    padded = [axis for axis in range(len(widths) // 2) if any(widths[2 * axis : 2 * axis + 2])]
    if mode not in PADDED or dims is None or not all(isinstance(dims[axis], int) for axis in padded):
        return None
    sides = {axis: padded_sides(mode, dims[axis], *widths[2 * axis : 2 * axis + 2]) for axis in padded}
    tables = [(axis, both) for axis, both in sides.items() if both is not None]
    if len(tables) < len(padded) or not any(is_long(*both, range(1)) for _, both in tables):
        return None
    *others, last = tables
    for axis, both in others:
        data = scope.emit(_widened(scope, data, axis, both))
    return _widened(scope, data, *last)


def _widened(scope: Scope, data: Any, axis: int, sides: tuple[list[int], list[int]]) -> Any:
    """``data`` between what a padding repeats: most of it is copied as a whole."""
    before, after = ([scope.emit(_taken(scope, data, axis, side))] if side else [] for side in sides)
    return relax.op.concat([*before, data, *after], axis)


def _flip(scope: Scope, call: Any) -> Any:
    dims = scope.dims(call)
    axis = int(call.attrs.axis)
    if dims is None or not isinstance(dims[axis], int):
        return None
    table = range(dims[axis])[::-1]
    return _taken(scope, call.args[0], axis % len(dims), table) if is_long(table) else None


def _slice(scope: Scope, call: Any) -> Any:
    """A slice of one axis from back to front."""
    data, dims, result = call.args[0], scope.dims(call.args[0]), scope.dims(call)
    try:
        axes, begins, _, steps = (int_tuple(bound) for bound in call.args[1:])
    except (Reject, ValueError):  # open bounds, or no steps
        return None
    if dims is None or result is None or len(axes) != 1 or steps[0] >= 0:
        return None
    size, count = dims[axes[0]], result[axes[0]]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    table = backwards(size, begins[0], steps[0], count)
    return _taken(scope, data, axes[0] % len(dims), table) if is_long(table) else None


_RULES = {"relax.nn.pad": [_pad], "relax.flip": [_flip], "relax.strided_slice": [_slice]}


def TakeTables() -> tvm.transform.Pass:
    """Pass: operators that would be many slices become a `take`."""
    return rewrite_pass("TakeTables", _RULES)
