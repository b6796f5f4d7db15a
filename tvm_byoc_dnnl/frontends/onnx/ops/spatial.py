"""Windows that move along the spatial axes: their pads, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dim import Dim, Size, at_least, equal, max_of, min_of
from ..value import Node, Value

__all__ = ["Windows", "halves"]


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or a pooling; all lists are of the spatial axes."""

    sizes: list[Size]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[Size]
    after: list[Size]
    rounds_up: bool = False  # a window for a rest

    @classmethod
    def of(cls, node: Node, data: Value, kernel: Sequence[Any]) -> Windows:
        rank = len(data.sizes) - 2
        if len(kernel) != rank:
            raise node.wrong(f"has windows of {list(kernel)} for {rank} spatial axes")
        sizes = list(data.sizes[2:])
        strides = list(node.attr("strides") or [1] * rank)
        dilations = list(node.attr("dilations") or [1] * rank)
        pads: list[Any] = list(node.attr("pads") or [0] * 2 * rank)
        kind = node.attr("auto_pad", "NOTSET")
        if kind in ("SAME_UPPER", "SAME_LOWER"):
            every = zip(sizes, kernel, strides, dilations, strict=True)
            total = [max_of((k - 1) * d - (n - 1) % s, 0) for n, k, s, d in every]
            pads = halves(total, kind == "SAME_UPPER")
        elif kind == "VALID":
            pads = [0] * 2 * rank
        elif kind != "NOTSET":
            raise node.wrong(f"has auto_pad {kind}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
        rounds_up = bool(node.attr("ceil_mode", 0)) and kind == "NOTSET"
        return cls(sizes, list(kernel), strides, dilations, pads[:rank], pads[rank:], rounds_up)

    @property
    def spans(self) -> list[int]:
        """How far a window reaches."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def counts(self) -> list[Size]:
        """The number of windows along each axis; none begins behind the data and the pads in front of it."""
        found = []
        for n, k, s, b, a in zip(self.sizes, self.spans, self.strides, self.before, self.after, strict=True):
            count = (n + b + a - k) // s + 1
            if self.rounds_up:
                count = min_of((n + b + a - k + s - 1) // s + 1, (n + b - 1) // s + 1)
            found.append(count)
        return found

    @property
    def is_fixed(self) -> bool:
        return not any(isinstance(p, Dim) for p in (*self.before, *self.after))

    @property
    def pads(self) -> list[Size]:
        return [*self.before, *self.after]

    @property
    def never_starts_outside(self) -> bool:
        """Whether rounding up makes no window that begins behind the data, whatever the sizes are."""
        return all(at_least(k, a + s) for k, s, a in zip(self.spans, self.strides, self.after, strict=True))

    def reached(self) -> list[Size]:
        """The pads behind the data that the last windows reach."""
        every = zip(self.counts, self.strides, self.spans, self.sizes, self.before, strict=True)
        return [(c - 1) * s + k - n - b for c, s, k, n, b in every]

    def exact(self) -> Windows:
        """The same windows without rounding up: what the last ones reach is padding."""
        if not self.rounds_up:
            return self
        after = [max_of(0, r) for r in self.reached()]
        return Windows(self.sizes, self.kernel, self.strides, self.dilations, self.before, after)

    def same_counts(self, other: Windows) -> bool:
        """Whether others are as many."""
        return all(a == b or equal(a, b) for a, b in zip(self.counts, other.counts, strict=True))


def halves(total: Sequence[Size], upper: bool) -> list[Any]:
    """Pads as before... after...; for SAME_UPPER the odd one is added behind."""
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return small + large if upper else large + small
