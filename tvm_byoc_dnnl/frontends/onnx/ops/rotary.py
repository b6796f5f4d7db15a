"""Rotary positions: pairs of columns of each head turn by an angle that grows with the position."""

from __future__ import annotations

from tvm import relax

from ..dim import Dim
from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value
from .attention_parts import arange, columns

__all__ = ["rotated"]

R = relax.op
_MS = "com.microsoft"


def rotated(e: Emit, x: Value, cos: Value, sin: Value, *, interleaved: bool) -> Value:
    """``x (B, S, N, H)`` turned by ``cos`` and ``sin (B or 1, S, R)``; columns behind the first ``2·R`` stay."""
    batch, length, heads, width = x.sizes
    half = cos.sizes[-1]
    if isinstance(half, Dim) or isinstance(width, Dim):
        raise e.refused("has rotary columns of an open number; fix it")
    if 2 * half > width:
        raise e.refused(f"rotates {2 * half} columns of heads that have {width}")
    cos, sin = (e.reshape(t, [*t.sizes[:2], 1, half]) for t in (cos, sin))
    turning = columns(e, x, 3, 0, 2 * half)
    if interleaved:
        pairs = e.reshape(turning, [batch, length, heads, half, 2])
        first, second = (e.reshape(columns(e, pairs, 4, i, i + 1), [batch, length, heads, half]) for i in range(2))
    else:
        first, second = columns(e, turning, 3, 0, half), columns(e, turning, 3, half, 2 * half)
    new_first = _product(e, first, cos) - _product(e, second, sin)
    new_second = _product(e, second, cos) + _product(e, first, sin)
    if interleaved:
        stacked = e.stack([new_first, new_second], -1)
        parts = [e.reshape(stacked, [batch, length, heads, 2 * half])]
    else:
        parts = [new_first, new_second]
    if 2 * half < width:
        parts.append(columns(e, x, 3, 2 * half, width))
    return parts[0] if len(parts) == 1 else e.concat(parts, 3)


def _product(e: Emit, x: Value, angles: Value) -> Value:
    return x * angles


def _same(node: Node) -> list[Type]:
    return [node.needed(0).type]


@operator("RotaryEmbedding", domain=_MS, types=_same, whole=True)
def _of_runtime(e: Emit, node: Node) -> Value:
    x, positions, cos, sin = (node.needed(i) for i in range(4))
    node.attr("scale")  # which the CPU ignores
    if node.attr("is_packed_batching", 0):
        raise node.refused("has `is_packed_batching`, which no CPU computes")
    used = node.attr("rotary_embedding_dim", 0)
    heads = node.attr("num_heads", 0)
    half = cos.sizes[-1]
    if used and heads == 0:
        raise node.wrong("has `rotary_embedding_dim` and no `num_heads`")
    batch, length = x.sizes[0], x.sizes[2 if x.rank == 4 else 1]
    if positions.rank == 1:  # an offset
        positions = arange(e, length) + e.cast(positions, "int64")
        positions = e.expand(e.reshape(positions, [1, length]), [batch, length])
    width = x.sizes[-1]
    if x.rank == 3:
        each = width // heads if heads else 2 * half
        return _by_rows(e, x, positions, cos, sin, width // each, node.attr("interleaved", 0))
    return _by_rows(e, x, positions, cos, sin, 0, node.attr("interleaved", 0))


@operator("RotaryEmbedding", since=23, types=_same, whole=True)
def _of_onnx(e: Emit, node: Node) -> Value:
    x, cos, sin = (node.needed(i) for i in range(3))
    used, heads = node.attr("rotary_embedding_dim", 0), node.attr("num_heads", 0)
    if x.rank == 3 and not heads:
        raise node.wrong("has an input of rank 3 and no `num_heads`")
    width = x.sizes[-1] if x.rank == 4 else x.sizes[-1] // heads
    half = cos.sizes[-1]
    if half * 2 != (used or width):
        raise node.wrong(f"has {half} columns of cosines; expected {(used or width) // 2}")
    return _by_rows(e, x, node.input(3), cos, sin, heads, node.attr("interleaved", 0))


def _by_rows(
    e: Emit, x: Value, positions: Value | None, cos: Value, sin: Value, heads: object, interleaved: int
) -> Value:
    """``x (B, S, N·H)`` or ``(B, N, S, H)``, with the rows of the tables at ``positions``, or all of them."""
    dims = x.sizes
    if positions is not None:
        cos, sin = (e.take(t, e.cast(positions, "int64"), axis=0) for t in (cos, sin))
    if x.rank == 4:
        turned = rotated(e, e.transpose(x, [0, 2, 1, 3]), cos, sin, interleaved=bool(interleaved))
        return e.transpose(turned, [0, 2, 1, 3])
    assert isinstance(heads, int)
    apart = e.reshape(x, [dims[0], dims[1], heads, dims[2] // heads])
    return e.reshape(rotated(e, apart, cos, sin, interleaved=bool(interleaved)), dims)
