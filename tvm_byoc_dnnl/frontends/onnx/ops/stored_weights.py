"""Rows of a table whose numbers are stored in few bits, in blocks that share a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


def _rows_types(node: Node) -> list[Type]:
    stored, indices, scales = (node.needed(i) for i in range(3))
    dims = list(stored.sizes)
    if stored.dtype == "uint8":
        dims[-1] = dims[-1] * (8 // int(node.attr("bits", 4)))
    axis = int(node.attr("gather_axis", 0)) % len(dims)
    return [Type(scales.dtype, (*dims[:axis], *indices.sizes, *dims[axis + 1 :]))]


@operator("GatherBlockQuantized", domain=_MS, types=_rows_types, whole=True)
def _gather(e: Emit, node: Node) -> Value:
    """Rows of a table in blocks; 0 for a row that is not there."""
    stored, indices, scales, zeros = (node.input(i) for i in range(4))
    assert stored is not None
    assert indices is not None
    assert scales is not None
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 128))
    rank = len(stored.sizes)
    axis, along = int(node.attr("gather_axis", 0)) % rank, int(node.attr("quantize_axis", 1)) % rank
    is_packed = stored.dtype == "uint8"
    if is_packed and (along != rank - 1 or axis == along):
        raise node.wrong(f"has bytes and the axes {axis} and {along}; expected blocks along the last axis")
    size = stored.sizes[axis]
    index = e.cast(indices, "int64")
    last = e.const(np.int64(size)) if isinstance(size, int) else Value(known=np.array(size, object), dtype="int64")
    zero = e.const(np.int64(0))
    index = e.where(index < zero, index + last, index)
    is_there = (index >= zero) & (index < last)
    index = e.where(is_there, index, zero)
    offset = 0 if not is_packed else 1 << (bits - 1)
    rows = _spread_bits(e, e.take(stored, index, axis=axis), bits if is_packed else 8)
    places = along if along < axis else along + len(indices.sizes) - 1
    scale = _along(e, e.take(scales, index, axis=axis), places, block, rows)
    real = e.cast(rows, scale.dtype)
    if zeros is not None:
        origin = e.take(zeros, index, axis=axis)
        if is_packed:
            origin = _spread_bits(e, origin, bits, scales.sizes[along])
        real = real - e.cast(_along(e, origin, places, block, rows), scale.dtype)
    elif offset:
        real = real - float(offset)
    out = real * scale
    dims = indices.sizes
    there = e.reshape(is_there, [*dims, *(1 for _ in range(rank - 1 - axis))])
    return e.where(there, out, e.const(0.0, scale.dtype))


def _spread_bits(e: Emit, stored: Value, bits: int, count: Any = None) -> Value:
    """Bytes along the last axis as the numbers in them, perhaps the first ``count`` of these."""
    if bits == 8:
        return stored
    dims, each = list(stored.sizes), 8 // bits
    parts = []
    for shift in range(0, 8, bits):
        moved = e.right_shift(stored, e.const(shift, "uint8")) if shift else stored
        parts.append(e.tensor(moved & e.const((1 << bits) - 1, "uint8")))
    wide = e.reshape(e.value(R.stack(parts, axis=-1)), [*dims[:-1], dims[-1] * each])
    if count is None or count == dims[-1] * each:
        return wide
    return e.strided_slice(wide, axes=[len(dims) - 1], begin=[0], end=[count])


def _along(e: Emit, blocks: Value, axis: int, block: int, like: Value) -> Value:
    """One of each block as one of each number along the axis."""
    size = like.sizes[axis]
    places = e.const(np.arange(int(size)) // block) if isinstance(size, int) else None
    if places is None:
        raise e.refused("has blocks along an axis of an open size; fix it")
    return e.take(blocks, places, axis=axis)
