"""Attention over a cache of keys and values, into which each sequence writes its new rows where it ends.

    row s of sequence b is at position start[b] + s; its key and value are written there, and it sees the keys up to
    there, or the last `window` of them
    ends[b] is the length of sequence b; the rows of the cache behind it are free

It is an operator of this package that a compiler may take as ``onnx.tvm_byoc_dnnl.CachedAttention``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tvm import relax

from ....whole import operator as whole_operator
from ....whole.own import DOMAIN, NAME
from ..dim import Size, equal, max_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from ..whole import emit_whole
from .attention_parts import Attended, Mask, arange, attend, number, total_of, written

__all__ = ["Cached", "Rule", "sees", "shown_scores"]

R = relax.op
_TOTAL = 7  # the input that is the number of keys that are attended to
_MOST_INPUTS = 10
_PRESENTS = (True, True, True)


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

    def kept_whole(self, e: Emit, node: Node, rule: Rule, *, shows_scores: bool) -> list[Value | None]:
        """One call: the result, the cache behind the new rows, and the scores, for a node of another operator."""
        inputs = [self.query, *self.new, *self.past, self.start, self.ends, number(self.total), self.bias, self.sink]
        attrs = {
            "scale": rule.scale or 0.0,
            "local_window_size": rule.window,
            "softcap": rule.softcap,
            "causal": int(rule.is_causal),
            "qk_output": rule.shown,
        }
        entry = whole_operator(DOMAIN, NAME)
        assert entry is not None
        return emit_whole(e, Node(NAME, DOMAIN, 1, node.name, inputs, attrs, (*_PRESENTS, shows_scores)), entry)

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
        at = arange(e, self.total)
        if rule.is_causal:
            rows = self.query.sizes[2]
            column = e.reshape(arange(e, rows), [1, 1, rows, 1])
            sees(e, mask, at, e.reshape(self.start, [batch, 1, 1, 1]) + column, rule.window)
        else:
            mask.require(at < e.reshape(self.ends, [batch, 1, 1, 1]))
        if self.bias is not None:
            mask.add(self.bias)
        key, value = (of(x) for of, x in zip(real, read, strict=True)) if real else read
        found = attend(e, self.query, key, value, scale=rule.scale, mask=mask, softcap=rule.softcap, sink=self.sink)
        return found, present


def sees(e: Emit, mask: Mask, at: Value, rows: Value, window: int) -> None:
    """Each row sees the rows up to itself, as far as its window goes."""
    mask.require(at <= rows)
    if window > 0:
        edge = rows - e.const(window)
        mask.require(at > edge)


def shown_scores(found: Attended, rule: Rule) -> Value:
    """The scores that are a result."""
    return found.biased if rule.shown == 1 else found.shares


def _operands(node: Node) -> Cached:
    if len(node.inputs) > _MOST_INPUTS:
        raise node.wrong(f"has {len(node.inputs)} inputs; expected at most {_MOST_INPUTS}")
    query, key, value, start, ends = (node.needed(i) for i in (0, 1, 2, 5, 6))
    total, past = total_of(node, _TOTAL), (node.input(3), node.input(4))
    if (past[0] is None) != (past[1] is None):
        raise node.wrong("has a cache of keys or of values alone, inputs 3 and 4; expected both or none")
    return Cached(query, (key, value), past, start, ends, total, node.input(8), node.input(9))


@operator(NAME, domain=DOMAIN, whole=True, sizes=frozenset({_TOTAL}))
def _cached_attention(e: Emit, node: Node) -> list[Value | None]:
    rule = Rule.of(node)
    found, present = _operands(node).expanded(e, rule)
    return [found.out, *present, shown_scores(found, rule)]
