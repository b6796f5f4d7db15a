"""Wraps a tall layered drawing into columns, so that a long network can be read when the whole of it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_READABLE = 0.75  # a drawing that fits with this scale stays in one column
_WINDOW = 0.2  # a cut may be moved by this share of a column, to where fewer edges cross
_MARGIN, _LANE = 30.0, 7.0
_MAX_LANES = 24  # of one gutter; beyond, edges share lanes


@dataclass(frozen=True)
class Column:
    """Some layers of the drawing.

    Attributes
    ----------
    first, end : int
        Its first layer, and the one after its last.
    shift : float
        Added to x of everything in it.
    gutter : float
        Where the first of the edges to the next column goes up.
    lanes : int
        Places side by side for these edges.
    """

    first: int
    end: int
    shift: float
    gutter: float
    lanes: int

    def lane(self, number: int) -> float:
        """The distance of an edge to the next column from the first such edge."""
        return _LANE * (number % max(1, self.lanes))

    @property
    def room(self) -> float:
        """The width of all lanes."""
        return _LANE * self.lanes


def columns(
    extents: Sequence[tuple[float, float]],
    crossing: Sequence[int],
    layer_height: float,
    view: tuple[float, float] | None,
) -> list[Column]:
    """Cut layers into columns.

    Parameters
    ----------
    extents : sequence of (float, float)
        The left and the right end of each layer.
    crossing : sequence of int
        Per layer, the edges that lead from it, or past it, to the next.
    layer_height : float
        Of every layer.
    view : (float, float), optional
        Width and height of the place in which the whole should be readable; without it there is one column.
    """
    if view is None or not extents:
        return _placed(extents, crossing, [0])
    best: list[Column] = []
    best_scale = 0.0
    for count in range(1, max(2, math.isqrt(len(extents)) + 1)):
        found = _placed(extents, crossing, _starts(crossing, count, len(extents)))
        width = found[-1].gutter
        height = max(c.end - c.first for c in found) * layer_height
        scale = min(view[0] / width, view[1] / height)
        if scale > 1.1 * best_scale:  # one more column must be worth it
            best, best_scale = found, scale
        if scale >= _READABLE:
            break
    return best


def _starts(crossing: Sequence[int], count: int, layers: int) -> list[int]:
    """The first layers of columns of about the same height, where few edges cross."""
    size = layers / count
    window = int(size * _WINDOW)
    starts = [0]
    for number in range(1, count):
        wanted = round(number * size)
        near = range(max(starts[-1] + 1, wanted - window), min(layers, wanted + window + 1))
        starts.append(min(near, key=lambda cut: (crossing[cut - 1], abs(cut - wanted)), default=wanted))
    return starts


def _placed(extents: Sequence[tuple[float, float]], crossing: Sequence[int], starts: Sequence[int]) -> list[Column]:
    found: list[Column] = []
    x = 0.0
    for first, end in zip(starts, [*starts[1:], len(extents)], strict=True):
        left = min((a for a, _ in extents[first:end]), default=0.0)
        right = max((b for _, b in extents[first:end]), default=0.0)
        lanes = min(crossing[end - 1], _MAX_LANES) if end < len(extents) else 0
        gutter = x + right - left + _MARGIN
        found.append(Column(first, end, x - left, gutter, lanes))
        x = gutter + found[-1].room + _MARGIN
    return found
