"""Attention over a cache of keys and values, into which each sequence writes its new rows where it ends.

CachedAttention, an operator of this package that a compiler may take as ``onnx.tvm_byoc_dnnl.CachedAttention``:
row s of sequence b is at position start[b] + s; its key and value are written there, and it sees the keys up to there,
or the last `window` of them; ends[b] is the length of sequence b, and the rows of the cache behind it are free.

GroupQueryAttention of ONNX Runtime, which is made of it: T[b] = seqlens_k[b] + 1 is the length of sequence b, its new
rows included; start[b] = T[b] - S is where its S new rows go, 0 if S is the total length: then the past is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx

from ....whole.table import DOMAIN, NAME
from ..dim import Dim, Size, equal, max_of
from ..emit import Emit, pieces
from ..table import operator
from ..value import Node, Value, listed
from .attention_parts import Attended, Mask, attend, column, joined, total_of, turned, written
from .computed import computed
from .quantised_blocks import numbers_in

_TOTAL = 6  # the input that is the length of the longest sequence
#: the least and the most of quantised numbers
_RANGES = {8: (-128, 127), 4: (-8, 7)}


@operator("GroupQueryAttention", domain="com.microsoft", whole=True, sizes=frozenset({_TOTAL}))
def _grouped(e: Emit, node: Node, *, sliding_window_cache: int = 0) -> list[Value | None]:
    if node.input(14) is not None or node.input(15) is not None:
        raise node.refused("has `q_norm_weight` or `k_norm_weight`, which ONNX Runtime computes on no CPU")
    call = _Call(e, node)
    return call.in_window() if sliding_window_cache else call.whole()


class _Call:
    """One node: its operands as ``(B, S, N, H)``, and where they go."""

    def __init__(self, e: Emit, node: Node) -> None:
        self.e, self.node = e, node
        heads, own = int(node.attr("num_heads")), int(node.attr("kv_num_heads"))
        query, key, value = node.needed(0), node.input(1), node.input(2)
        self.batch, self.rows, width = query.sizes
        if key is None or value is None:
            if isinstance(width, Dim):
                raise node.refused("has packed queries of an open width; fix it")
            each = width // (heads + 2 * own)
            packed = e.reshape(query, [self.batch, self.rows, heads + 2 * own, each])
            query, key, value = (
                e.strided_slice(packed, axes=[2], begin=[a], end=[a + n])
                for a, n in ((0, heads), (heads, own), (heads + own, own))
            )
        else:
            query, key, value = (
                e.reshape(x, [self.batch, self.rows, n, x.sizes[2] // n])
                for x, n in ((query, heads), (key, own), (value, own))
            )
        self.total = total_of(node, _TOTAL)
        last = node.needed(5)
        last = e.agree(last, [self.batch]) if last.rank == 1 else e.reshape(last, [self.batch])
        self.lengths = e.cast(last, "int64") + e.const(1)
        self.start = self._start()
        self.position = self._plus_rows(self.start)  # (B, S), of each new row
        query, key, self.value = (e.transpose(x, [0, 2, 1, 3]) for x in (query, key, value))
        if node.attr("do_rotary", 0):
            angles = self._angles(), node.needed(7), node.needed(8)
            query, key = (turned(e, node, x, *angles) for x in (query, key))
        node.unused("rotary_interleaved")
        self.query, self.key = query, key
        self.keys, self.values = _Store(e, node, "k", 12, node.input(3)), _Store(e, node, "v", 13, node.input(4))
        self.rule = Rule.of(node)
        self.new = self.keys.stored(self.key), self.values.stored(self.value)
        self.past = self._past(node.input(3), self.new[0]), self._past(node.input(4), self.new[1])
        self.sink = node.input(11)
        if self.sink is None and node.attr("smooth_softmax", -1) == 1:
            self.sink = e.const(np.zeros(heads, "float32"))
        node.unused("smooth_softmax", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon")

    def _past(self, given: Value | None, new: Value) -> Value | None:
        """The cache before, whose heads are as the new ones: exporters leave their size open."""
        if given is None:
            return None
        batch, own, _, width = new.sizes
        old, _, length, _ = given.sizes
        shape = self.e.shape([old, own, length, width])  # a number for a symbol that nothing else has
        sized = Value(self.e.bb.match_cast(self.e.tensor(given), relax.TensorType(shape, given.dtype)))
        return self.e.agree(sized, [batch, own, length, width])

    def _start(self) -> Value:
        e, given = self.e, self.node.input(16)  # the new rows of each sequence, the others are padding
        if given is not None:
            return self.lengths - e.cast(given, "int64")
        return self._chosen(e.expand(listed(0), [self.batch]), self.lengths - listed(self.rows))

    def _chosen(self, alone: Value, behind: Value) -> Value:
        """What holds where the new rows are all, or where there are others before them."""
        if equal(self.rows, self.total):
            return alone
        if not isinstance(self.rows, Dim) and not isinstance(self.total, Dim):
            return behind
        return self.e.where(self.e.equal(listed(self.rows), listed(self.total)), alone, behind)

    def _plus_rows(self, start: Value) -> Value:
        return self.e.reshape(start, [start.sizes[0], 1]) + self.e.places(self.rows)

    def _angles(self) -> Value:
        """The position of each new row that its angle depends on."""
        e, given = self.e, self.node.input(9)
        if given is None:
            return self.position
        given = e.cast(given, "int64")
        one = e.reshape(e.strided_slice(given, axes=[0, 1], begin=[0, 0], end=[1, 1]), [1])
        return self._chosen(e.expand(self._plus_rows(one), [self.batch, self.rows]), given)

    def whole(self) -> list[Value | None]:
        """With a cache of all rows."""
        e, node = self.e, self.node
        places = self.start, self.lengths, self.total, node.input(10), self.sink
        if not self.keys.is_packed and not self.values.is_packed:
            # what multiplies whole numbers multiplies the queries and the results instead
            cached = Cached(self.keys.times_scales(self.query), self.new, self.past, *places)
            shows = len(node.wanted) > 3 and node.wanted[3]
            out, *others = cached.kept_whole(e, self.rule, shows_scores=shows)
            return [joined(e, self.values.times_scales(out)), *others]
        cached = Cached(self.query, self.new, self.past, *places)
        found, present = cached.expanded(e, self.rule, self.keys.real, self.values.real)
        return [joined(e, found.out), *present, shown_scores(found, self.rule)]

    def in_window(self) -> list[Value | None]:
        """With a cache of the last rows only: of T rows it holds all, or the last w + (T - C - 1) mod (C - w + 1)."""
        e, node = self.e, self.node
        node.needed(3), node.needed(4)
        past = [x for x in self.past if x is not None]
        size = past[0].sizes[2]
        old, now = self._held(self.start, size), self._held(self._end(), size)
        shape = [self.batch, 1, 1, 1]
        from_past = e.places(size)
        behind = e.reshape(self.start - old, shape)
        first = e.expand(from_past + behind, [self.batch, 1, 1, size])
        rows = e.reshape(self.position, [self.batch, 1, self.rows, 1])
        second = e.reshape(self.position, [self.batch, 1, 1, self.rows])
        at = e.concat([first, second], 3)
        held = from_past < e.reshape(old, shape)
        all_new = e.full(e.shape([self.batch, 1, 1, self.rows]), e.const(True, "bool"), dtype="bool")
        there = e.concat([e.expand(held, [self.batch, 1, 1, size]), all_new], 3)
        mask = Mask(e, self.query.dtype)
        mask.require(there)
        mask.see(at, rows, left=self.rule.left, right=0)
        # the rows of the cache, 0 behind the last, and then the new ones
        is_row = e.reshape(held, [self.batch, 1, size, 1])
        pairs = list(zip(past, self.new, strict=True))
        read = [e.concat([e.where(is_row, o, e.const(0, o.dtype)), n], 2) for o, n in pairs]
        shift = self._end() - now - (self.start - old)
        present = [self._slid(o, n, old, now, shift) for o, n in pairs]
        if (bias := node.input(10)) is not None:
            mask.add(bias)
        key, value = self.keys.real(read[0]), self.values.real(read[1])
        found = attend(
            e, self.query, key, value, scale=self.rule.scale, mask=mask, softcap=self.rule.softcap, sink=self.sink
        )
        return [joined(e, found.out), *present, shown_scores(found, self.rule)]

    def _end(self) -> Value:
        return self.start + listed(self.rows)

    def _held(self, length: Value, size: Size) -> Value:
        """The number of rows that a cache holds of so many."""
        e = self.e
        over = length - listed(size + 1)
        rest = over % listed(size - self.rule.window + 1)
        return e.where(length <= listed(size), length, rest + e.const(self.rule.window))

    def _slid(self, past: Value, new: Value, old: Value, now: Value, shift: Value) -> Value:
        """The cache behind the new rows: those that it drops are at its front."""

        def compute(past: te.Tensor, new: te.Tensor, old: te.Tensor, now: te.Tensor, shift: te.Tensor) -> te.Tensor:
            def one(b: Any, h: Any, t: Any, d: Any) -> Any:
                at = t + shift[b]
                kept = tirx.if_then_else(at < old[b], past[b, h, at, d], new[b, h, at - old[b], d])
                return tirx.if_then_else(t < now[b], kept, past[b, h, t, d])

            return te.compute(past.shape, one, name="cache")

        return computed(self.e, "slide_cache", compute, past, new, old, now, shift)


class _Store:
    """How the cache stores its numbers: as they are, or as bytes, or two in a byte, with scales."""

    def __init__(self, e: Emit, node: Node, which: str, position: int, past: Value | None) -> None:
        self._e, self._past, self._dtype = e, past, node.needed(0).dtype
        self._kind = node.attr(f"{which}_quant_type", "NONE")
        self._bits = node.attr("kv_cache_bit_width", 0) or 8
        self._own, self._scale = int(node.attr("kv_num_heads")), node.input(position)
        if not self.is_quantised:
            return
        if self._bits not in _RANGES or self._scale is None or self._kind not in ("PER_TENSOR", "PER_CHANNEL"):
            raise node.refused(f"has a cache of {self._bits} bits, {self._kind}; expected 8 or 4 with scales")

    @property
    def is_quantised(self) -> bool:
        """Whether it stores other numbers than those that are attended to."""
        return bool(self._kind != "NONE")

    @property
    def is_packed(self) -> bool:
        """Whether a byte of it has two numbers."""
        return self.is_quantised and self._bits == 4

    def _scales(self) -> Value:
        assert self._scale is not None
        if self._kind == "PER_CHANNEL":
            return self._e.reshape(self._scale, [1, self._own, 1, self._scale.sizes[0] // self._own])
        flat = self._e.expand(self._e.reshape(self._scale, [1]), [self._own])
        return self._e.reshape(flat, [1, self._own, 1, 1])

    def stored(self, x: Value) -> Value:
        """Rows ``(B, N, S, H)`` as the cache has them."""
        if not self.is_quantised:
            return x if self._past is None else self._e.cast(x, self._past.dtype)
        e, (least, most) = self._e, _RANGES[self._bits]
        parts = x / self._scales()
        if self._bits == 8:
            return e.onnx("QuantizeLinear", parts, e.const(1.0, "float32"), e.const(0, "int8"))
        whole = e.clip(e.round(parts), min=least, max=most)
        *lead, width = x.sizes
        pairs = e.reshape(e.cast(whole + 8.0, "uint8"), [*lead, width // 2, 2])
        low, high = pieces(e, pairs, 4, 2)
        return low | e.left_shift(high, e.const(4, "uint8"))

    def real(self, x: Value) -> Value:
        """Rows of the cache as numbers."""
        if not self.is_quantised:
            return self._e.cast(x, self._dtype)
        whole = self._e.cast(numbers_in(self._e, x, self._bits), "float32")
        return (whole - 8.0 if self._bits == 4 else whole) * self._scales()

    def times_scales(self, x: Value) -> Value:
        """``(B, N, S, H)``, a head for each of some of queries, times the scales."""
        if not self.is_quantised:
            return x
        batch, heads, rows, width = x.sizes
        groups = self._e.reshape(x, [batch, self._own, heads // self._own * rows, width])
        return self._e.reshape(groups * self._scales(), x.sizes)


_KEYS = 7  # the input that is the number of keys that are attended to
_MOST_INPUTS = 10


class Rule(NamedTuple):
    """How the scores become shares; ``shown`` is 1 where the scores are a result before the softmax, else behind."""

    scale: float | None
    window: int
    softcap: float
    is_causal: bool
    shown: int

    @classmethod
    def of(cls, node: Node) -> Rule:
        """What a node says."""
        return cls(
            node.attr("scale", 0.0) or None,
            int(node.attr("local_window_size", -1)),
            float(node.attr("softcap", 0.0)),
            bool(node.attr("causal", 1)),
            int(node.attr("qk_output", 0)),
        )

    @property
    def left(self) -> int:
        """The rows before itself that a row sees, -1 for all."""
        return max(self.window, 0) - 1


class Cached(NamedTuple):
    """The operands: ``query (B, N, S, H)``, new rows ``(B, K, S, H)``, the cache before ``(B, K, P, H)``, ``(B,)``."""

    query: Value
    new: tuple[Value, Value]
    past: tuple[Value | None, Value | None]
    start: Value
    ends: Value
    total: Size
    bias: Value | None
    sink: Value | None

    def kept_whole(self, e: Emit, rule: Rule, *, shows_scores: bool) -> list[Value]:
        """One call: the result, the cache behind the new rows, and the scores, for a node of another operator."""
        inputs = [self.query, *self.new, *self.past, self.start, self.ends, listed(self.total), self.bias, self.sink]
        return e.onnx(
            NAME,
            *inputs,
            domain=DOMAIN,
            opset=1,
            outputs=4 if shows_scores else 3,
            scale=rule.scale or 0.0,
            local_window_size=rule.window,
            softcap=rule.softcap,
            causal=int(rule.is_causal),
            qk_output=rule.shown,
        )

    def length(self) -> Size:
        """The rows of the cache behind the new ones."""
        past = self.past[0]
        return self.total if past is None else max_of(past.sizes[2], self.total)

    def expanded(self, e: Emit, rule: Rule, *real: Callable[[Value], Value]) -> tuple[Attended, list[Value]]:
        """The same by operators of Relax, and the cache; ``real`` give the numbers of keys and values of a cache."""
        length, batch = self.length(), self.query.sizes[0]
        is_buffer = not equal(length, self.total)
        pairs = list(zip(self.past, self.new, strict=True))
        present = [written(e, old, rows, self.start, length, keeps_rest=is_buffer) for old, rows in pairs]
        read = present
        if is_buffer:
            read = [written(e, old, rows, self.start, self.total, keeps_rest=False) for old, rows in pairs]
        mask = Mask(e, self.query.dtype)
        at = e.places(self.total)
        if rule.is_causal:
            rows = e.reshape(self.start, [batch, 1, 1, 1]) + column(e, self.query.sizes[2])
            mask.see(at, rows, left=rule.left, right=0)
        else:
            mask.require(at < e.reshape(self.ends, [batch, 1, 1, 1]))
        if self.bias is not None:
            mask.add(self.bias)
        key, value = (of(x) for of, x in zip(real, read, strict=True))
        found = attend(e, self.query, key, value, scale=rule.scale, mask=mask, softcap=rule.softcap, sink=self.sink)
        return found, present


def shown_scores(found: Attended, rule: Rule) -> Value:
    """The scores that are a result."""
    return found.biased if rule.shown == 1 else found.shares


def _operands(node: Node) -> Cached:
    if len(node.inputs) > _MOST_INPUTS:
        raise node.wrong(f"has {len(node.inputs)} inputs; expected at most {_MOST_INPUTS}")
    query, key, value, start, ends = (node.needed(i) for i in (0, 1, 2, 5, 6))
    total, past = total_of(node, _KEYS), (node.input(3), node.input(4))
    if (past[0] is None) != (past[1] is None):
        raise node.wrong("has a cache of keys or of values alone, inputs 3 and 4; expected both or none")
    return Cached(query, (key, value), past, start, ends, total, node.input(8), node.input(9))


@operator(NAME, domain=DOMAIN, whole=True, sizes=frozenset({_KEYS}))
def _cached_attention(e: Emit, node: Node) -> list[Value | None]:
    rule = Rule.of(node)
    operands = _operands(node)

    def wide(x: Value) -> Value:
        return e.cast(x, operands.query.dtype)

    found, present = operands.expanded(e, rule, wide, wide)
    return [found.out, *present, shown_scores(found, rule)]
