"""What the operators for attention have in common: heads, masks, and the two products with the softmax."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from tvm import te, tirx

from ..dim import Dim, Size, equal, max_of
from ..emit import Emit, pieces
from ..table import operator
from ..value import Node, Value, listed
from .computed import computed
from .products import multiplied

_INFINITE = float("-inf")


def total_of(node: Node, i: int) -> Size:
    """The length of the longest sequence, an input of one number."""
    found: list[Size] = node.known(i, "its total length").reshape(-1).tolist()
    if len(found) != 1:
        raise node.wrong(f"has {len(found)} numbers as its total length, input {i}; expected one")
    return found[0]


def column(e: Emit, count: Size) -> Value:
    """The numbers from 0 on, one below the other."""
    return e.reshape(e.places(count), [count, 1])


def split_heads(e: Emit, x: Value, heads: int) -> Value:
    """``(B, S, N·H)`` as ``(B, N, S, H)``."""
    batch, length, width = x.sizes
    return e.transpose(e.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def joined(e: Emit, x: Value) -> Value:
    """``(B, N, S, H)`` as ``(B, S, N·H)``."""
    batch, heads, length, width = x.sizes
    return e.reshape(e.transpose(x, [0, 2, 1, 3]), [batch, length, heads * width])


class Mask:
    """What is added to the scores, ``(B or 1, N or 1, S, T)``: numbers, and what a key gets that is hidden.

    Constants are computed here.
    """

    def __init__(self, e: Emit, dtype: str) -> None:
        if "float" not in dtype:
            raise e.refused(f"hides scores of {dtype}; they must be floating-point numbers")
        self._e, self._dtype = e, dtype
        self._sum: Value | None = None
        self._visible: Value | None = None
        #: whether a row may see nothing
        self.may_hide_all = False

    def require(self, condition: Value, *, hides_all: bool = False) -> None:
        self._visible = condition if self._visible is None else self._visible & condition
        self.may_hide_all = self.may_hide_all or hides_all

    def see(self, at: Value, rows: Value, *, left: int = -1, right: int = -1, hides_all: bool = False) -> None:
        """Each row sees the keys from ``left`` before itself to ``right`` behind itself, all of them for -1."""
        if right >= 0:
            self.require(at <= (rows + self._e.const(right) if right else rows), hides_all=hides_all)
        if left >= 0:
            self.require(at >= rows - self._e.const(left), hides_all=hides_all)

    def penalise(self, condition: Value, penalty: float) -> None:
        """Add a number where this does not hold."""
        self.add(self._where(condition, penalty))

    def add(self, bias: Value) -> None:
        bias = self._e.cast(bias, self._dtype)
        self._sum = bias if self._sum is None else self._sum + bias

    def _where(self, condition: Value, otherwise: float) -> Value:
        return self._e.where(condition, self._e.const(0.0, self._dtype), otherwise)

    @property
    def bias(self) -> Value | None:
        """What is added, ``None`` for nothing."""
        if self._visible is None:
            return self._sum
        hidden = self._where(self._visible, _INFINITE)
        return hidden if self._sum is None else self._sum + hidden


class Attended(NamedTuple):
    out: Value
    scaled: Value
    capped: Value
    biased: Value
    shares: Value


def attend(
    e: Emit,
    query: Value,
    key: Value,
    value: Value,
    *,
    scale: float | None,
    mask: Mask | None = None,
    softcap: float = 0.0,
    sink: Value | None = None,
) -> Attended:
    """Attention of ``query (B, N, S, H)`` to ``key (B, K, T, H)`` and ``value (B, K, T, E)``.

    A row that sees nothing gives 0. A ``softcap`` that is not 0 gives ``softcap · tanh(scores / softcap)``. ``sink``,
    ``(N,)``, is a score of each head that takes a share and gives nothing.
    """
    heads, width = query.sizes[1], query.sizes[3]
    factor: Any = scale
    if scale is None and isinstance(width, Dim):
        factor = 1.0 / e.sqrt(e.cast(e.reshape(listed(max_of(width, 1)), []), query.dtype))
    elif scale is None:
        factor = 1.0 / math.sqrt(max_of(width, 1))  # type: ignore[arg-type]
    key, value = (e.cast(_repeated(e, x, heads), query.dtype) for x in (key, value))
    scores = multiplied(e, query, e.transpose(key, [0, 1, 3, 2])) * factor
    capped = scores
    if softcap:
        capped = e.tanh(scores / softcap) * softcap
    bias = None if mask is None else mask.bias
    biased = capped if bias is None else capped + bias
    hidden = _hidden(e, bias) if bias is not None and mask is not None and mask.may_hide_all else None
    if hidden is None or bias is None:
        shares = _shares(e, biased, sink)
        return Attended(multiplied(e, shares, value), scores, capped, biased, shares)
    # A softmax of nothing but -∞ is NaN, and so may be the numbers of a row that sees something.
    shares = _shares(e, capped + e.where(hidden, 0.0, bias), sink)
    out, shares = (e.where(hidden, 0.0, x) for x in (multiplied(e, shares, value), shares))
    return Attended(out, scores, capped, biased, shares)


def _hidden(e: Emit, bias: Value) -> Value | None:
    """The rows that see nothing; ``None`` where there surely are none."""
    if bias.is_constant and bias.known is not None:
        known = np.isneginf(bias.known).all(-1, keepdims=True)
        return e.const(known) if known.any() else None
    return e.cast(e.min(e.cast(e.equal(bias, _INFINITE), "int32"), axis=[-1], keepdims=True), "bool")


def _repeated(e: Emit, x: Value, heads: Size) -> Value:
    """Heads of keys or values, each repeated for the heads of queries that read it."""
    batch, own, length, width = x.sizes
    if equal(own, heads):
        return x
    if not isinstance(own, Dim) and not isinstance(heads, Dim) and (not own or heads % own):
        raise e.refused(f"has {heads} heads of queries and {own} of keys; expected a multiple")
    each = e.expand(e.reshape(x, [batch, own, 1, length, width]), [batch, own, heads // own, length, width])
    return e.reshape(each, [batch, heads, length, width])


def _shares(e: Emit, scores: Value, sink: Value | None) -> Value:
    if sink is None:
        return e.softmax(scores, axis=-1)
    batch, heads, rows, length = scores.sizes
    sinks = e.expand(e.reshape(e.cast(sink, scores.dtype), [1, heads, 1, 1]), [batch, heads, rows, 1])
    wide = e.concat([sinks, scores], 3)
    shares = e.softmax(wide, axis=-1)
    return e.agree(e.cut(shares, 3, 1, length + 1), [batch, heads, rows, length])


def written(e: Emit, past: Value | None, new: Value, start: Value, length: Size, *, keeps_rest: bool) -> Value:
    """``(B, N, length, H)``: ``past`` with the rows ``new (B, N, S, H)`` at ``start (B,)``.

    Behind them is what ``past`` has there, or 0: nothing may have been written there before, not even numbers.
    """

    def compute(start: te.Tensor, new: te.Tensor, *rest: Any) -> te.Tensor:
        *old, size = rest
        batch, heads, rows, width = new.shape

        def one(b: Any, h: Any, t: Any, d: Any) -> Any:
            at = t - start[b]
            other = tirx.const(0, new.dtype)
            if old:
                is_there = t < old[0].shape[2] if keeps_rest else tirx.all(at < 0, t < old[0].shape[2])
                other = tirx.if_then_else(is_there, old[0][b, h, t, d], other)
            return tirx.if_then_else(tirx.all(at >= 0, at < rows), new[b, h, at, d], other)

        return te.compute((batch, heads, size, width), one, name="cache")

    return computed(e, "write_cache", compute, start, new, *([past] if past is not None else []), length)


# ---- rotary positions: pairs of columns of each head turn by an angle that grows with the position --------


_MS = "com.microsoft"


def _rotated(e: Emit, x: Value, cos: Value, sin: Value, *, interleaved: bool) -> Value:
    """``x (B, S, N, H)`` turned by ``cos`` and ``sin (B or 1, S, R)``; columns behind the first ``2·R`` stay."""
    (batch, length, heads, width), half = x.sizes, cos.sizes[-1]
    if isinstance(half, Dim):
        raise e.refused(f"rotates {half} pairs of {width} columns; fix these open sizes")
    if not isinstance(width, Dim) and 2 * half > width:
        raise e.refused(f"rotates {2 * half} columns of heads that have {width}")
    cos, sin = (e.reshape(t, [*t.sizes[:2], 1, half]) for t in (cos, sin))
    if isinstance(width, Dim):
        x = e.agree(x, [batch, length, heads, max_of(width, 2 * half)])
    turning = e.cut(x, 3, 0, 2 * half)
    if interleaved:
        pairs = e.reshape(turning, [batch, length, heads, half, 2])
        first, second = pieces(e, pairs, 4, 2)
    else:
        first, second = (e.cut(turning, 3, at, at + half) for at in (0, half))
    parts = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        parts = [e.reshape(e.stack(parts, -1), [batch, length, heads, 2 * half])]
    if width != 2 * half:
        parts.append(e.cut(x, 3, 2 * half, width))
    return e.concat(parts, 3)


def turned(e: Emit, node: Node, x: Value, positions: Value, cos: Value, sin: Value) -> Value:
    """``x (B, N, S, H)`` with the rows of the tables at ``positions (B, S)``; one call, for a node of attention."""
    half, heads = cos.sizes[-1], x.sizes[1]
    if isinstance(half, Dim):
        raise e.refused(f"rotates {half} pairs of {x.sizes[-1]} columns; fix these open sizes")
    interleaved = int(node.attr("rotary_interleaved", 0))
    attrs: dict[str, Any] = {"num_heads": heads, "rotary_embedding_dim": 2 * half, "interleaved": interleaved}
    return e.onnx("RotaryEmbedding", x, positions, cos, sin, domain=_MS, opset=1, **attrs)


def _of_one_width(e: Emit, x: Value, cos: Value, sin: Value, heads: int, used: int) -> tuple[Value, Value, Value]:
    """Heads of as many columns as the tables are for; an open number is that of the others."""
    parts, half = heads if x.rank == 3 else 1, cos.sizes[-1]
    columns = used or x.sizes[-1] // parts
    if isinstance(columns, int) and (columns % 2 or (isinstance(half, int) and half != columns // 2)):
        raise e.refused(f"rotates {columns} columns by {half} cosines; expected an even number, and half as many")
    known = columns // 2 if isinstance(columns, int) else half
    if isinstance(known, int):
        x = x if used else e.agree(x, [*x.sizes[:-1], 2 * known * parts])
        cos, sin = (e.agree(t, [*t.sizes[:-1], known]) for t in (cos, sin))
    return x, cos, sin


@operator("RotaryEmbedding", domain=_MS, whole=True)
def _of_runtime(e: Emit, node: Node, x: Value, positions: Value, cos: Value, sin: Value) -> Value:
    node.unused("scale")  # which the CPU ignores
    if node.attr("is_packed_batching", 0):
        raise node.refused("has `is_packed_batching`, which no CPU computes")
    used = node.attr("rotary_embedding_dim", 0)
    heads = node.attr("num_heads", 0)
    if used and heads == 0:
        raise node.wrong("has `rotary_embedding_dim` and no `num_heads`")
    batch, length = x.sizes[0], x.sizes[2 if x.rank == 4 else 1]
    if positions.rank == 1:  # an offset
        positions = e.places(length) + e.cast(positions, "int64")
        positions = e.expand(e.reshape(positions, [1, length]), [batch, length])
    if x.rank == 3 and not heads:
        heads = x.sizes[-1] // (2 * cos.sizes[-1])
        if isinstance(heads, Dim):
            raise node.refused(f"has {heads} heads, an open number; fix it, or add `num_heads`")
    x, cos, sin = _of_one_width(e, x, cos, sin, heads, used)
    return _by_rows(e, node, x, positions, cos, sin, heads)


@operator("RotaryEmbedding", since=23, whole=True)
def _of_onnx(e: Emit, node: Node, x: Value, cos: Value, sin: Value, positions: Value | None = None) -> Value:
    used, heads = node.attr("rotary_embedding_dim", 0), node.attr("num_heads", 0)
    if x.rank == 3 and not heads:
        raise node.wrong("has an input of rank 3 and no `num_heads`")
    x, cos, sin = _of_one_width(e, x, cos, sin, heads, used)
    return _by_rows(e, node, x, positions, cos, sin, heads)


def _by_rows(e: Emit, node: Node, x: Value, positions: Value | None, cos: Value, sin: Value, heads: Any) -> Value:
    """``x (B, S, N·H)`` or ``(B, N, S, H)``, with the rows of the tables at ``positions``, or all of them."""
    dims, interleaved = x.sizes, bool(node.attr("interleaved", 0))
    if positions is not None:
        cos, sin = (e.take(t, e.cast(positions, "int64"), axis=0) for t in (cos, sin))
    if x.rank == 4:
        turned = _rotated(e, e.transpose(x, [0, 2, 1, 3]), cos, sin, interleaved=interleaved)
        return e.transpose(turned, [0, 2, 1, 3])
    apart = e.reshape(x, [dims[0], dims[1], heads, dims[2] // heads])
    return e.reshape(_rotated(e, apart, cos, sin, interleaved=interleaved), dims)
