"""The cheapest choice between two sides, of bfloat16 and of float32, for things that cost something on each and
something for each pair that is divided: a minimum cut, by Dinic's algorithm."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["LOW", "WIDE", "Cut"]

#: what is on these sides in any case
LOW, WIDE = 0, 1
_UNIT = 1e-15  # seconds are counted in whole units, so that sums are exact
_FORBIDDEN = 1 << 80


class Cut:
    """Things are numbers; `LOW` and `WIDE` are two of them."""

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]  # edges of each thing; the edge back is the next or the last one
        self._to: list[int] = []
        self._left: list[int] = []

    def add(self) -> int:
        """One thing more."""
        self._leaving.append([])
        return len(self._leaving) - 1

    def pay(self, low: int, wide: int, seconds: float) -> None:
        """The cost of the first being on the side of bfloat16 while the second is on that of float32."""
        if low == wide:
            return
        units = _FORBIDDEN if math.isinf(seconds) else round(seconds / _UNIT)
        for start, end, left in ((low, wide, units), (wide, low, 0)):
            self._leaving[start].append(len(self._to))
            self._to.append(end)
            self._left.append(left)

    def low(self) -> set[int]:
        """The things on the side of bfloat16: as few as the least cost allows."""
        while (levels := self._levels())[WIDE] >= 0:
            self._augment(levels)
        return {thing for thing, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """How many edges with something left each thing is away from LOW; -1 if it cannot be reached."""
        levels = [-1] * len(self._leaving)
        levels[LOW] = 0
        queue = deque([LOW])
        while queue:
            thing = queue.popleft()
            for edge in self._leaving[thing]:
                if self._left[edge] and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[thing] + 1
                    queue.append(self._to[edge])
        return levels

    def _augment(self, levels: list[int]) -> None:
        """Use up all shortest paths."""
        rest = [list(edges) for edges in self._leaving]
        path: list[int] = []
        thing = LOW
        while True:
            if thing == WIDE:
                least = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= least
                    self._left[edge ^ 1] += least
                path, thing = [], LOW
            edges = rest[thing]
            while edges and not (self._left[edges[-1]] and levels[self._to[edges[-1]]] == levels[thing] + 1):
                edges.pop()
            if edges:
                path.append(edges[-1])
                thing = self._to[edges[-1]]
            elif path:
                thing = self._to[path.pop() ^ 1]
                rest[thing].pop()
            else:
                return
