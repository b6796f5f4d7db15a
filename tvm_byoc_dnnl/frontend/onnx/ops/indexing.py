"""Elements that are taken by their places: slices, gathers, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Size, at_least, expr_of, max_of, min_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, numbers
from .moving import from_start
from .shapes import MOST, dims_of, few, rank_of


def _gather_value(node: Node) -> Any:
    known = few(node.needed(0), node.needed(1))
    if known is None or known[1].dtype == object:
        return None
    data, indices = known
    axis = node.attr("axis", 0)
    if data.size * max(indices.size, 1) > MOST * MOST:
        return None
    found = np.empty(np.shape(indices), data.dtype) if data.ndim == 1 else np.take(data, indices, axis=axis)
    if data.ndim == 1:
        found[...] = data[indices]
    return found if found.size <= MOST else None


@operator("Gather", value=_gather_value)
def _gather(e: Emit, node: Node) -> Any:
    data, indices = node.needed(0), node.needed(1)
    axis = node.attr("axis", 0)
    if data.dims is None:
        raise node.refused("reads a tensor of unknown rank")
    if not -len(data.dims) <= axis < len(data.dims):
        raise node.wrong(f"has the axis {axis}; expected {-len(data.dims)} to {len(data.dims) - 1}")
    axis %= len(data.dims)
    return e.call(relax.op.take, data, from_start(e, indices, [data.dims[axis]]), axis=axis)


# ---- Slice ------------------------------------------------------------------------------------------------

_FAR = 1 << 27  # at least this is "to the end" for exporters


def _slice_bounds(node: Node) -> tuple[list[int], list[Any], list[Any], list[int]] | None:
    """Axes, starts, ends and steps; ``None`` if only a call knows them."""
    if node.opset < 10:
        starts, ends = list(node.attr("starts", ())), list(node.attr("ends", ()))
        axes, steps = node.attr("axes"), None
    else:
        given = [node.input(i) for i in range(1, 5)]
        if any(v is not None and v.known is None for v in given):
            return None
        starts, ends = node.ints(1) or [], node.ints(2) or []
        axes, steps = node.ints(3), node.ints(4)
    rank = rank_of(node)
    along = list(range(len(starts))) if axes is None else [int(a) for a in axes]
    by = [1] * len(starts) if steps is None else steps
    if not len(along) == len(starts) == len(ends) == len(by):
        raise node.wrong(f"has {len(starts)} starts, {len(ends)} ends, {len(along)} axes and {len(by)} steps")
    if any(not -rank <= a < rank for a in along):
        raise node.wrong(f"has the axes {along}; expected {-rank} to {rank - 1}")
    if any(isinstance(s, Dim) or s == 0 for s in by):
        raise node.wrong(f"has the steps {by}; expected numbers that are not 0")
    return [a % rank for a in along], starts, ends, by


def _slice_value(node: Node) -> Any:
    known = few(node.needed(0))
    bounds = _slice_bounds(node) if known is not None else None
    if known is None or bounds is None:
        return None
    axes, starts, ends, steps = bounds
    if any(isinstance(n, Dim) for n in (*starts, *ends)):
        return None
    cut: list[Any] = [slice(None)] * known[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Counted from the end, "before the first" is what Python calls None.
        cut[axis] = slice(start, None if step < 0 and end < -known[0].shape[axis] else end, step)
    return np.ascontiguousarray(known[0][tuple(cut)]) if known[0].dtype != object else known[0][tuple(cut)]


@operator("Slice", value=_slice_value)
def _slice(e: Emit, node: Node) -> Any:
    x, bounds = node.needed(0), _slice_bounds(node)
    if bounds is None:
        return NotImplemented
    dims = dims_of(node)
    along, begins, ends, steps = [], [], [], []
    turned: list[int] = []
    sizes = list(dims)
    for axis, start, stop, step in zip(*bounds, strict=True):
        size = dims[axis]
        if step > 0:
            first, last = _bound(start, size, node), _bound(stop, size, node)
        else:  # the elements in front of the end, behind it the first one: turned round afterwards
            first, last = _lowest(stop, size, node), _lowest(start, size, node)
            turned.append(axis)
        if not at_least(last, first):
            last = max_of(first, last)
        if first == 0 and last == size and abs(step) == 1:
            continue
        along.append(axis)
        begins.append(first)
        ends.append(last)
        steps.append(abs(step))
        sizes[axis] = -(-(last - first) // abs(step))
    if any(isinstance(s, int) and s == 0 for s in sizes):
        return e.value(relax.op.zeros(e.shape(sizes), x.dtype))
    if along and not turned:
        x = _cut(e, x, dims, along, ends)
        return e.call(
            relax.op.strided_slice,
            x,
            axes=along,
            begin=_exprs(begins),
            end=_exprs(ends),
            strides=steps,
            **_inbound(begins, ends),
        )
    if along:
        x = _cut(e, x, dims, along, ends)
        ones = [1] * len(along)
        x = e.call(
            relax.op.strided_slice,
            x,
            axes=along,
            begin=_exprs(begins),
            end=_exprs(ends),
            strides=ones,
            **_inbound(begins, ends),
        )
    for axis in turned:
        x = e.call(relax.op.flip, x, axis=axis)
    strided = [(a, s) for a, s in zip(along, steps, strict=True) if s != 1]
    if strided:
        now = x.dims or ()
        x = e.call(
            relax.op.strided_slice,
            x,
            axes=[a for a, _ in strided],
            begin=[0] * len(strided),
            end=_exprs([now[a] for a, _ in strided]),
            strides=[s for _, s in strided],
            assume_inbound=True,
        )
    return x


def _exprs(sizes: Sequence[Size]) -> list[Any]:
    return [expr_of(s) if isinstance(s, Dim) else s for s in sizes]


def _inbound(*bounds: Sequence[Size]) -> dict[str, bool]:
    return {"assume_inbound": any(isinstance(b, Dim) for side in bounds for b in side)}


def _bound(bound: Size, size: Size, node: Node) -> Size:
    """A start or an end of a slice with a step above 0, counted from the first element."""
    if isinstance(bound, int):
        if bound >= _FAR:
            return size
        if bound < 0:
            return max_of(size + bound, 0) if bound > -_FAR else 0
        return min_of(bound, size)
    if at_least(bound, 0):
        return bound
    if at_least(-1, bound):
        return max_of(size + bound, 0)
    raise node.refused(f"has the bound {bound}, which counts from the start or from the end, as the call has it")


def _lowest(bound: Size, size: Size, node: Node) -> Size:
    """The element behind a bound of a slice with a step below 0, counted from the first element."""
    if isinstance(bound, int) and bound >= _FAR:
        return size
    if isinstance(bound, int) and bound <= -_FAR:
        return 0
    if at_least(bound, 0):
        return min_of(bound + 1, size)
    if at_least(-1, bound):
        return max_of(size + bound + 1, 0)
    raise node.refused(f"has the bound {bound}, which counts from the start or from the end, as the call has it")


def _cut(e: Emit, x: Value, dims: Sequence[Size], along: Sequence[int], ends: Sequence[Size]) -> Value:
    """The data, after a check in the call that no end is beyond its size: TVM's slice would read there."""
    wanted = list(dims)
    for axis, end in zip(along, ends, strict=True):
        if not at_least(dims[axis], end):
            wanted[axis] = max_of(dims[axis], end)
    return e.agree(x, wanted)


# ---- Range ------------------------------------------------------------------------------------------------


def _whole(value: Any) -> Size:
    """A number of a range as an integer or an open size."""
    if isinstance(value, float) and not value.is_integer():
        raise TypeError(f"{value} is no size")
    return int(value) if isinstance(value, float) else value


@operator("Range", since=11)
def _range(e: Emit, node: Node) -> Any:
    given = [node.needed(i) for i in range(3)]
    known = few(*given)
    if known is None or all(array.dtype != object for array in known):
        return NotImplemented
    try:
        start, stop, step = (_whole(array.reshape(-1).tolist()[0]) for array in known)
    except TypeError:
        return NotImplemented
    count = stop - start
    if step != 1 or not at_least(count, 0):
        return NotImplemented
    made = e.value(relax.op.arange(0, expr_of(count), 1, "int64"))
    if start != 0:
        made = e.call(relax.op.add, made, e.tensor(Value(known=numbers([start], ()), dtype="int64")))
    return e.cast(made, given[0].dtype)
