"""A layered drawing of a directed acyclic graph: data flow down, few crossings, long edges around the boxes.

The classical three steps: layers by the longest path, order within layers by the mean of the neighbours, and
coordinates as near to the neighbours as the boxes' widths allow. Edges that pass a layer get a point there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Drawing", "draw"]

_GAP_X, _GAP_Y, _HEIGHT = 26.0, 34.0, 40.0
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 12
_LANE = 10.0  # width kept free for an edge that passes a layer
_MAX_LANES = 20_000  # beyond, long edges are drawn straight: nobody can follow them anyway


@dataclass
class Drawing:
    """The positions of everything that is drawn.

    Attributes
    ----------
    boxes : list of (x, y)
        Centre of each node.
    routes : list of list of (x, y)
        Per edge, from the lower side of its source to the upper side of its target.
    width, height : float
        Of the whole.
    """

    boxes: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def draw(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Lay out nodes of the given widths.

    Parameters
    ----------
    widths : sequence of float
        One per node.
    edges : sequence of (int, int)
        Source and target; no cycles.
    """
    return _Layout(widths, edges).drawing()


class _Layout:
    def __init__(self, widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> None:
        self.widths = list(widths)
        self.edges = list(edges)
        self.layer = _layers(len(widths), self.edges)
        self.chains = self._chains()
        n = len(self.widths)
        self.up: list[list[int]] = [[] for _ in range(n)]
        self.down: list[list[int]] = [[] for _ in range(n)]
        for chain in self.chains:
            for a, b in pairwise(chain):
                if self.layer[b] == self.layer[a] + 1:
                    self.down[a].append(b)
                    self.up[b].append(a)
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for node, layer in enumerate(self.layer):
            self.rows[layer].append(node)
        self.x = [0.0] * n

    def drawing(self) -> Drawing:
        self._order()
        self._place()
        real = len(self.widths) - sum(len(c) - 2 for c in self.chains)
        left = min((self.x[i] - w / 2 for i, w in enumerate(self.widths)), default=0.0) - _GAP_X
        y = [_GAP_Y + _HEIGHT / 2 + layer * (_HEIGHT + _GAP_Y) for layer in self.layer]
        at = [(round(x - left, 1), round(h, 1)) for x, h in zip(self.x, y, strict=True)]
        right = max((at[i][0] + w / 2 for i, w in enumerate(self.widths)), default=0.0)
        return Drawing(
            at[:real],
            [self._route(chain, at) for chain in self.chains],
            round(right + _GAP_X, 1),
            len(self.rows) * (_HEIGHT + _GAP_Y) + _GAP_Y,
        )

    def _route(self, chain: Sequence[int], at: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        (x0, y0), (x1, y1) = at[chain[0]], at[chain[-1]]
        points = [(x0, y0 + _HEIGHT / 2)]
        for lane in chain[1:-1]:
            x, y = at[lane]
            points += [(x, y - _HEIGHT / 2), (x, y + _HEIGHT / 2)]
        return [*points, (x1, y1 - _HEIGHT / 2)]

    def _chains(self) -> list[list[int]]:
        """Each edge as the nodes it passes, lanes for the layers between included."""
        spans = [self.layer[b] - self.layer[a] - 1 for a, b in self.edges]
        use_lanes = sum(spans) <= _MAX_LANES
        chains = []
        for (a, b), span in zip(self.edges, spans, strict=True):
            first = len(self.widths)
            lanes = range(first, first + span if use_lanes else first)
            self.widths += [_LANE] * len(lanes)
            self.layer += [self.layer[a] + 1 + i for i in range(len(lanes))]
            chains.append([a, *lanes, b])
        return chains

    def _sweeps(self, times: int) -> Iterable[tuple[list[int], list[list[int]]]]:
        """Rows with the neighbours to look at: down through the graph, up again, and so on."""
        for sweep in range(times):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            for row in rows:
                yield row, (self.up if sweep % 2 == 0 else self.down)

    def _order(self) -> None:
        position = {n: float(i) for row in self.rows for i, n in enumerate(row)}
        for row, neighbours in self._sweeps(_ORDER_SWEEPS):
            mean = {n: _mean([position[m] for m in neighbours[n]], position[n]) for n in row}
            row.sort(key=mean.__getitem__)
            for i, n in enumerate(row):
                position[n] = float(i)

    def _place(self) -> None:
        for row in self.rows:
            self._set(row, [0.0] * len(row))
        for row, neighbours in self._sweeps(_PLACE_SWEEPS):
            self._set(row, [_mean([self.x[m] for m in neighbours[n]], self.x[n]) for n in row])

    def _set(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Place a row as near to ``wanted`` (least squares) as its order and widths allow."""
        offsets = [0.0]
        for a, b in pairwise(row):
            offsets.append(offsets[-1] + (self.widths[a] + self.widths[b]) / 2 + _GAP_X)
        blocks: list[tuple[float, int]] = []  # (sum, length): neighbours that push against each other move as one
        for want, offset in zip(wanted, offsets, strict=True):
            total, length = want - offset, 1
            while blocks and blocks[-1][0] / blocks[-1][1] > total / length:
                other, more = blocks.pop()
                total, length = total + other, length + more
            blocks.append((total, length))
        places = [total / length for total, length in blocks for _ in range(length)]
        for node, place, offset in zip(row, places, offsets, strict=True):
            self.x[node] = place + offset


def _layers(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from above; a node without predecessors is placed directly above its first reader."""
    readers: list[list[int]] = [[] for _ in range(n)]
    waiting = [0] * n
    for a, b in edges:
        readers[a].append(b)
        waiting[b] += 1
    layer = [0] * n
    ready = [i for i in range(n) if waiting[i] == 0]
    sources = list(ready)
    for node in ready:
        for reader in readers[node]:
            layer[reader] = max(layer[reader], layer[node] + 1)
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(ready) != n:
        raise ValueError("the graph has a cycle; a layered drawing needs an acyclic one")
    for node in sources:
        if readers[node]:
            layer[node] = min(layer[r] for r in readers[node]) - 1
    return layer


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
