"""Elements that are taken by their places: slices, gathers, ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dim import Dim, Size, at_least, expr_of, max_of, min_of
from ..emit import Emit
from ..table import operator
from ..value import MOST, Node, Value, Words, few, listed
from .computed import asked
from .moving import from_start
from .shapes import axes_of, length_of


def words_of(e: Emit, table: Value) -> Words | None:
    """A constant of strings, from which a call chooses."""
    if table.known is None or table.known.dtype != object or not isinstance(next(iter(table.known.flat), None), str):
        return None
    return Words(tuple(table.known.reshape(-1).tolist()), e.node.what if e.node is not None else "the model")


@operator("Gather")
def _gather(e: Emit, data: Value, indices: Value, *, axis: int = 0) -> Any:
    axis %= len(data.sizes)
    if data.rank == 1 and (words := words_of(e, data)) is not None:
        return Value(e.tensor(e.cast(from_start(e, indices, [data.sizes[0]]), "int64")), words=words)
    return e.take(data, from_start(e, indices, [data.sizes[axis]]), axis=axis)


# ---- Slice ------------------------------------------------------------------------------------------------

_FAR = 1 << 27  # at least this is "to the end" for exporters


def _slice_bounds(node: Node) -> tuple[list[int], list[Any], list[Any], list[int]] | None:
    """Axes, starts, ends and steps; ``None`` if only a call knows them."""
    if any(v is not None and v.known is None for v in node.inputs[1:]):
        return None
    starts, ends = node.ints(1) or [], node.ints(2) or []
    axes, steps = node.ints(3), node.ints(4)
    along = list(range(len(starts))) if axes is None else [int(a) for a in axes]
    by = [1] * len(starts) if steps is None else steps
    if not len(along) == len(starts) == len(ends) == len(by):
        raise node.wrong(f"has {len(starts)} starts, {len(ends)} ends, {len(along)} axes and {len(by)} steps")
    if any(isinstance(s, Dim) or s == 0 for s in by):
        raise node.wrong(f"has the steps {by}; expected numbers that are not 0")
    rank = len(node.needed(0).sizes)
    axes_of(along, rank, node)
    return [a % rank for a in along], starts, ends, by


@operator("Slice")
def _slice(e: Emit, node: Node, x: Value) -> Any:
    bounds, dims = _slice_bounds(node), node.needed(0).sizes
    if bounds is None or not all(_has_sign(bound) for bound in (*bounds[1], *bounds[2])):
        return _sliced_in_call(e, node, x, dims)
    along, begins, ends, steps = [], [], [], []
    turned: list[int] = []
    sizes = list(dims)
    for axis, start, stop, step in zip(*bounds, strict=True):
        size = dims[axis]
        if step > 0:
            first, last = _bound(start, size), _bound(stop, size)
        else:  # the elements in front of the end, behind it the first one: turned round afterwards
            first, last = _bound(stop, size, 1), _bound(start, size, 1)
            turned.append(axis)
        last = max_of(first, last)
        if first == 0 and last == size and abs(step) == 1:
            continue
        along.append(axis)
        begins.append(first)
        ends.append(last)
        steps.append(abs(step))
        sizes[axis] = -(-(last - first) // abs(step))
    if 0 in sizes and x.known is None:
        return e.zeros(sizes, x.dtype)
    if along:
        cut = _cut(e, x, dims, along, ends)
        x = _strided(e, cut, along, begins, ends, [1] * len(along) if turned else steps)
        if not turned:
            return x
    for axis in turned:
        x = e.flip(x, axis=axis)
    strided = {a: s for a, s in zip(along, steps, strict=True) if s != 1}
    if strided:
        now = [x.sizes[a] for a in strided]
        x = _strided(e, x, [*strided], [0] * len(now), now, [*strided.values()], is_inbound=True)
    return x


def _strided(
    e: Emit, x: Value, axes: list[int], begins: list[Any], ends: list[Any], steps: list[int], is_inbound: bool = False
) -> Value:
    is_open = any(isinstance(b, Dim) for b in (*begins, *ends))
    begin, end = ([expr_of(s) if isinstance(s, Dim) else s for s in side] for side in (begins, ends))
    return e.strided_slice(x, axes=axes, begin=begin, end=end, strides=steps, assume_inbound=is_open or is_inbound)


def _sliced_in_call(e: Emit, node: Node, x: Value, dims: Sequence[Size]) -> Value:
    """A slice of which only a call knows the bounds; the axes must be known."""
    lists = {i: v.sizes[0] for i, v in enumerate(node.inputs) if i and v is not None and v.rank == 1}
    known = next((i for i, length in lists.items() if isinstance(length, int)), 1)  # all are as long
    count, axes = length_of(node, known, "the starts"), node.ints(3, "the axes")
    along = [int(a) % len(dims) for a in (range(count) if axes is None else axes)]
    rows = []
    for i, rest in ((1, [0] * len(dims)), (2, list(dims)), (4, [1] * len(dims))):
        given = node.input(i)
        if given is None:
            given = e.const(np.ones(count, "int64"))
        given = e.reshape(e.cast(given, "int64"), [count])
        own = listed(*rest)
        rows.append(e.scatter_elements(own, e.const(along, "int64"), given) if along else own)
    made = e.dynamic_strided_slice(x, *rows)
    sizes = [Dim.symbol(f"{node.op.lower()}_dim{a}") if a in along else d for a, d in enumerate(dims)]
    return e.agree(made, sizes)


def _has_sign(bound: Size) -> bool:
    """Whether all calls count a bound from the same end."""
    return at_least(bound, 0) or at_least(-1, bound)


def _bound(bound: Size, size: Size, beyond: int = 0) -> Size:
    """A start or an end of a slice, counted from the first element, or that which is so many elements ``beyond`` it."""
    if isinstance(bound, int) and abs(bound) >= _FAR:
        return size if bound > 0 else 0
    if at_least(bound + beyond, size):
        return size
    if at_least(bound, 0):
        return bound if isinstance(bound, Dim) and not beyond else min_of(bound + beyond, size)
    return max_of(size + bound + beyond, 0)


def _cut(e: Emit, x: Value, dims: Sequence[Size], along: Sequence[int], ends: Sequence[Size]) -> Value:
    """The data, after a check in the call that no end is beyond its size: TVM's slice would read there."""
    wanted = list(dims)
    for axis, end in zip(along, ends, strict=True):
        if not at_least(dims[axis], end):
            wanted[axis] = max_of(dims[axis], end)
    return e.agree(x, wanted)


# ---- Range ------------------------------------------------------------------------------------------------


@operator("Range", since=11)
def _range(e: Emit, node: Node) -> Any:
    start, stop, step = given = [e.reshape(node.needed(i), []) for i in range(3)]
    if few(*given) is not None and all(v.is_constant for v in given):
        first, last, by = (v.known.item() for v in given)  # type: ignore[union-attr]
        count = max(math.ceil((last - first) / by), 0)
        if count <= MOST:
            return e.const((np.arange(count).astype(start.dtype) * step.known + start.known).astype(start.dtype))
    span = e.cast(stop - start, "int64").known if few(*given) is not None and step.is_constant else None
    if span is not None and step.known == 1 and at_least(count := span.item(), 0):
        return e.cast(e.places(count) + e.cast(start, "int64"), start.dtype)
    return _range_in_call(e, start, stop, step)


def _range_in_call(e: Emit, start: Value, stop: Value, step: Value) -> Value:
    """A range whose length only a call knows."""
    dtype = start.dtype
    wide = "float64" if "float" in dtype else "int64"
    span = e.cast(stop, wide) - e.cast(start, wide)
    by = e.cast(step, wide)
    count = -(-span // by) if wide == "int64" else e.ceil(span / by)  # rounded up
    count = e.cast(e.maximum(count, e.const(0, wide)), "int64")
    (length,) = asked(e, e.reshape(count, [1]), ["range_length"])
    places = e.cast(e.places(length), dtype)
    return places * step + start
