"""Operators that move, repeat or leave out elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Size, max_of, min_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, numbers
from .shapes import dims_of, few

# ---- Split ------------------------------------------------------------------------------------------------


def _part_sizes(node: Node) -> tuple[int, list[Size]]:
    """The axis that a Split divides, and the sizes of its parts."""
    dims, count = dims_of(node), len(node.wanted)
    axis = node.attr("axis", 0)
    if not -len(dims) <= axis < len(dims):
        raise node.wrong(f"has the axis {axis}; expected {-len(dims)} to {len(dims) - 1}")
    axis %= len(dims)
    size, given = dims[axis], node.attr_or_input("split", 1)
    if given:
        return axis, given
    parts = node.attr("num_outputs", count)
    if isinstance(size, Dim):
        if node.opset < 18:  # parts are equal, which is checked in the call
            return axis, [size // parts] * parts
        each = -(-size // parts)
        found = [min_of(each, max_of(size - each * i, 0)) for i in range(parts - 1)]
        return axis, [*found, size - sum(found)]
    each = -(-size // parts)
    return axis, [min(each, max(size - each * i, 0)) for i in range(parts)]


def _split_value(node: Node) -> Any:
    known = few(node.needed(0))
    if known is None or (node.input(1) is not None and node.needed(1).known is None):
        return None
    axis, sizes = _part_sizes(node)
    ends = list(itertools.accumulate(int(s) for s in sizes if isinstance(s, int)))
    return [known[0].take(range(a, b), axis) for a, b in zip([0, *ends], ends, strict=False)]


@operator("Split", since=2, value=_split_value)
def _split(e: Emit, node: Node) -> Any:
    x, (axis, sizes) = node.needed(0), _part_sizes(node)
    ends = list(itertools.accumulate(sizes))
    whole = dims_of(node)[axis]
    if not isinstance(whole, Dim) and not isinstance(ends[-1], Dim) and ends[-1] != whole:
        raise node.wrong(f"has split {sizes}, together {ends[-1]}; expected the {whole} elements of its axis")
    if len(sizes) == 1:
        return [x]
    if not any(isinstance(s, Dim) or s == 0 for s in (*sizes, whole)):
        made = e.call(relax.op.split, x, indices_or_sections=ends[:-1], axis=axis).expr
        return [e.value(relax.TupleGetItem(made, i)) if w else None for i, w in enumerate(node.wanted)]
    x = e.agree(x, [ends[-1] if a == axis else d for a, d in enumerate(dims_of(node))])
    return [
        e.cut(x, axis, start, end) if wanted else None
        for start, end, wanted in zip([0, *ends], ends, node.wanted, strict=False)
    ]


# ---- Tile --------------------------------------------------------------------------------------------


@operator("Tile", since=6)
def _tile(e: Emit, node: Node) -> Any:
    x, repeats = node.needed(0), node.input(1)
    if repeats is None or repeats.known is None:
        return NotImplemented
    times, dims = node.ints(1) or [], dims_of(node)
    if len(times) != len(dims):
        raise node.wrong(f"has {len(times)} repeats; expected {len(dims)}, because its input has as many axes")
    if all(t == 1 for t in times):
        return x
    wide = e.reshape(x, [size for d in dims for size in (1, d)])
    wide = e.expand(wide, [size for t, d in zip(times, dims, strict=True) for size in (t, d)])
    return e.reshape(wide, [t * d for t, d in zip(times, dims, strict=True)])


@operator("Trilu", since=14)
def _triangle(e: Emit, node: Node) -> Any:
    k = node.input(1)
    if k is not None and not k.is_constant:
        return NotImplemented
    diagonal = 0 if k is None else int((node.ints(1) or [0])[0])
    return e.call(relax.op.triu if node.attr("upper", 1) else relax.op.tril, node.needed(0), k=diagonal)


@operator("CumSum", since=11)
def _running_sum(e: Emit, node: Node) -> Any:
    x, axis = node.needed(0), int((node.ints(1, "its axis") or [0])[0])
    reverse = node.attr("reverse", 0)
    x = e.call(relax.op.flip, x, axis=axis) if reverse else x
    x = e.call(relax.op.cumsum, x, axis=axis, exclusive=bool(node.attr("exclusive", 0)))
    return e.call(relax.op.flip, x, axis=axis) if reverse else x


# ---- gathers ----------------------------------------------------------------------------------------------


def from_start(e: Emit, indices: Value, extents: list[Size]) -> Value:
    """Indices counted from the first element; along their last axis the extents take turns, if there are several."""
    if indices.dtype.startswith("uint") or (indices.is_constant and (known_of(indices) >= 0).all()):
        return indices
    shape = () if len(extents) == 1 else (len(extents),)
    if indices.is_constant and not any(isinstance(s, Dim) for s in extents):
        known = known_of(indices)
        sizes = np.array(extents, known.dtype).reshape(shape)
        return Value(known=np.where(known < 0, known + sizes, known).astype(known.dtype))
    lengths = Value(known=numbers(extents, shape), dtype="int64")
    shifted = e.call(relax.op.add, indices, e.cast(lengths, indices.dtype))
    return e.call(relax.op.where, e.call(relax.op.less, indices, e.const(0, indices.dtype)), shifted, indices)


def known_of(value: Value) -> np.ndarray:
    """The numbers of a constant."""
    assert value.known is not None
    return value.known


@operator("GatherElements", since=11)
def _gather_elements(e: Emit, node: Node) -> Any:
    x, dims = node.needed(0), dims_of(node)
    axis = node.attr("axis", 0) % max(len(dims), 1)
    return e.call(relax.op.gather_elements, x, from_start(e, node.needed(1), [dims[axis]]), axis=axis)


@operator("GatherND", since=11)
def _gather_nd(e: Emit, node: Node) -> Any:
    x, indices, batch = node.needed(0), node.needed(1), node.attr("batch_dims", 0)
    dims, count = dims_of(node), (indices.dims or (None,))[-1]
    if not isinstance(count, int):
        raise node.refused("has indices of unknown length")
    return e.call(relax.op.gather_nd, x, from_start(e, indices, dims[batch : batch + count]), batch_dims=batch)
