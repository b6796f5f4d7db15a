"""The report as one self-contained page: no network, no library; data, drawing, style and script in one file. Of
blocks of calls that a network repeats, as the layers of a transformer, one of each is drawn.

The drawing is layered: data flow down, few crossings, long edges around the boxes. It takes the classical three steps:
layers by the longest path, order within layers by the mean of the neighbours, and coordinates as near to the
neighbours as the boxes' widths allow. Edges that pass a layer get a point there. A tall drawing is wrapped into
columns, so that a long network can be read when the whole of it is shown.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np

from ..partitioning.report_data import CallReport, ReportData
from .text import FIGURES_OF_A_REGION, figures_of, render_text

_GAP_X, _GAP_Y, _HEIGHT = 26.0, 34.0, 40.0
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 12
_LANE = 10.0  # width kept free for an edge that passes a layer
_MAX_LANES = 20_000  # beyond, long edges are drawn straight: nobody can follow them anyway


@dataclass
class Drawing:
    """The positions of everything that is drawn."""

    #: centre of each node
    boxes: list[tuple[float, float]]
    #: per edge, from the lower side of its source to the upper side of its target; around the end of a column
    routes: list[list[tuple[float, float]]]
    #: of the whole
    width: float
    height: float


def draw(widths: Sequence[float], edges: Sequence[tuple[int, int]], view: tuple[float, float] | None = None) -> Drawing:
    """Lay out nodes of these widths; no cycles. A tall drawing is wrapped into columns for the place of ``view``."""
    return _Layout(widths, edges, view).drawing()


class _Layout:
    def __init__(
        self, widths: Sequence[float], edges: Sequence[tuple[int, int]], view: tuple[float, float] | None
    ) -> None:
        self.view = view
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
        self.x = [0.0] * len(self.widths)
        self.columns: list[Column] = []
        self.column: list[int] = []  # of each layer
        self.used: Counter[Column] = Counter()  # edges that are already drawn from a column to the next
        self.top = _GAP_Y

    def drawing(self) -> Drawing:
        self._order()
        self._place()
        real = len(self.widths) - sum(len(c) - 2 for c in self.chains)
        extents = [
            (min(self.x[i] - self.widths[i] / 2 for i in row), max(self.x[i] + self.widths[i] / 2 for i in row))
            for row in self.rows
        ]
        self.columns = columns(extents, _HEIGHT + _GAP_Y, self.view)
        self.column = [number for number, c in enumerate(self.columns) for _ in range(c.first, c.end)]
        self.top = _GAP_Y + (_GUTTER_LANES * _GUTTER_LANE / 2 if len(self.columns) > 1 else 0.0)
        at = [self._at(node) for node in range(len(self.widths))]
        routes = [self._route(chain, at) for chain in self.chains]
        height = max((c.end - c.first for c in self.columns), default=0) * (_HEIGHT + _GAP_Y) + self.top
        width = self.columns[-1].gutter + _GAP_X if self.columns else 2 * _GAP_X
        return Drawing(at[:real], routes, round(width, 1), height + self.top)

    def _at(self, node: int) -> tuple[float, float]:
        column = self.columns[self.column[self.layer[node]]]
        y = self.top + _HEIGHT / 2 + (self.layer[node] - column.first) * (_HEIGHT + _GAP_Y)
        return round(self.x[node] + column.shift + _GAP_X, 1), round(y, 1)

    def _route(self, chain: Sequence[int], at: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for a, b in pairwise(chain):
            (x0, y0), (x1, y1) = at[a], at[b]
            points.append((x0, y0 + _HEIGHT / 2))
            if self.column[self.layer[a]] != self.column[self.layer[b]]:
                points += self._around(self.columns[self.column[self.layer[a]]], points[-1], x1)
            points.append((x1, y1 - _HEIGHT / 2))
        return points

    def _around(self, column: Column, start: tuple[float, float], x: float) -> list[tuple[float, float]]:
        """The way from the end of a column to the top of the next, beside the edges that already go there."""
        lane = _GUTTER_LANE * (self.used[column] % _GUTTER_LANES)
        self.used[column] += 1
        low, right, high = start[1] + 8 + lane / 2, column.gutter + _GAP_X + lane, self.top - 12 - lane / 2
        return [(start[0], low), (right, low), (right, high), (x, high)]

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


_READABLE = 0.75  # a drawing that fits with this scale stays in one column
_MARGIN = 30.0
_GUTTER_LANE, _GUTTER_LANES = 7.0, 8  # places side by side, which more edges to the next column share


@dataclass(frozen=True)
class Column:
    """Some layers of the drawing."""

    #: its first layer, and the one after its last
    first: int
    end: int
    #: added to x of everything in it
    shift: float
    #: where the first of the edges to the next column goes up
    gutter: float


def columns(
    extents: Sequence[tuple[float, float]], layer_height: float, view: tuple[float, float] | None
) -> list[Column]:
    """Cut layers with these left and right ends into columns of one height, readable in the place of ``view``."""
    best = _placed(extents, max(1, len(extents)))
    best_scale = 0.0
    if view is None:
        return best
    for count in range(1, math.isqrt(len(extents)) + 1):
        found = _placed(extents, -(-len(extents) // count))
        scale = min(view[0] / found[-1].gutter, view[1] / (found[0].end * layer_height))
        if scale > 1.1 * best_scale:  # one more column must be worth it
            best, best_scale = found, scale
        if scale >= _READABLE:
            break
    return best


def _placed(extents: Sequence[tuple[float, float]], layers: int) -> list[Column]:
    found: list[Column] = []
    x = 0.0
    for first in range(0, len(extents), layers):
        end = min(first + layers, len(extents))
        left, right = min(a for a, _ in extents[first:end]), max(b for _, b in extents[first:end])
        gutter = x + right - left + _MARGIN
        found.append(Column(first, end, x - left, gutter))
        x = gutter + _GUTTER_LANES * _GUTTER_LANE + _MARGIN
    return found


@dataclass(frozen=True)
class Repeat:
    """Equal blocks of calls that follow each other."""

    #: the id of the first call, the calls of one block, and how many blocks there are
    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.times


def find_repeats(calls: Sequence[CallReport]) -> list[Repeat]:
    """The blocks that save most boxes, in program order; they do not overlap."""
    known: dict[Hashable, int] = {}
    words = [known.setdefault((c.label, c.compiler, c.output, c.attrs, len(c.inputs)), len(known)) for c in calls]
    operands = np.full((len(calls), max((len(c.inputs) for c in calls), default=0)), -1, dtype=np.int64)
    for row, call in zip(operands, calls):
        row[: len(call.inputs)] = call.inputs
    return _search(np.array(words, dtype=np.int64), operands, 0, len(calls))


def _search(words: np.ndarray, operands: np.ndarray, first: int, end: int) -> list[Repeat]:
    found = (_longest(words, operands, first, end, length) for length in range(2, (end - first) // 2 + 1))
    best = max(found, key=_saved, default=None)
    if best is None or best.times < 2:
        return []
    return [*_search(words, operands, first, best.first), best, *_search(words, operands, best.end, end)]


def _saved(repeat: Repeat) -> tuple[int, int]:
    return repeat.length * (repeat.times - 1), -repeat.length


def _longest(words: np.ndarray, operands: np.ndarray, first: int, end: int, length: int) -> Repeat:
    """The longest run of blocks of this length: of the same calls, with the same operands or those of their block."""
    one, next_one = slice(first, end - length), slice(first + length, end)
    step = operands[next_one] - operands[one]
    differs = np.flatnonzero((words[one] != words[next_one]) | ((step != 0) & (step != length)).any(axis=1))
    ends = np.concatenate([[-1], differs, [end - first - length]])
    at = int(np.argmax(np.diff(ends)))
    return Repeat(first + int(ends[at]) + 1, length, (int(ends[at + 1]) - int(ends[at]) - 1) // length + 1)


_CHAR, _SMALL_CHAR, _PADDING = 7.4, 6.1, 24.0
_MIN_WIDTH, _MAX_WIDTH = 64.0, 230.0
_VIEW = 1000.0, 760.0  # the place for the graph on a usual screen


def render_html(report: ReportData, timing: Mapping[str, Any] | None = None) -> str:
    """The page: the graph of a report, and with ``timing`` (`Profile.to_dict`) the measured times."""
    title = f"{report.model or 'model'} on {', '.join(report.compilers) or 'TVM'}"
    repeats = find_repeats(report.calls)
    once = {**_of_calls(report, repeats), "repeats": [r.times for r in repeats]}
    drawings = {"calls": _of_calls(report, []), "repeats": once, "regions": _of_regions(report)}
    tables = {"columns": FIGURES_OF_A_REGION, "rows": {r.name: figures_of(r) for r in report.regions}}
    data = {"report": report, "drawings": drawings, "regions": tables, "timing": timing}
    parts = {
        "style": _file("page.css"),
        "script": "".join(map(_file, ("page.js", "times.js", "start.js"))),
        "title": html.escape(title),
        "text": html.escape(render_text(report)),
        # `<` is the only character that could end the script element early
        "data": json.dumps(data, separators=(",", ":"), default=vars).replace("<", "\\u003c"),
    }
    page = _file("page.html")
    for name, value in parts.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    return page


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _width(label: str, below: str) -> float:
    wanted = max(len(label) * _CHAR, len(below) * _SMALL_CHAR) + _PADDING
    return round(min(max(wanted, _MIN_WIDTH), _MAX_WIDTH), 1)


def _of_calls(report: ReportData, repeats: Sequence[Repeat]) -> dict[str, Any]:
    """One box per call, and of blocks that follow each other and are equal only the first."""
    shown = list(range(len(report.calls)))  # of each call, the call in whose box it is
    block: dict[int, int] = {}
    for number, repeat in enumerate(repeats):
        for i in range(repeat.first, repeat.end):
            shown[i] = repeat.first + (i - repeat.first) % repeat.length
        block |= dict.fromkeys(range(repeat.first, repeat.first + repeat.length), number)
    place = {i: number for number, i in enumerate(dict.fromkeys(shown))}
    boxes: list[dict[str, Any]] = [
        {"calls": [], "label": c.label, "below": c.output, **({"repeat": block[c.id]} if c.id in block else {})}
        for c in report.calls
        if c.id in place
    ]
    for call in report.calls:
        boxes[place[shown[call.id]]]["calls"].append(call.id)
    # From a block to the one after it, an edge would lead back to the same boxes.
    edges = {
        (place[shown[i]], place[shown[c.id]]): None for c in report.calls for i in c.inputs if shown[i] < shown[c.id]
    }
    return _drawn(boxes, edges)


def _of_regions(report: ReportData) -> dict[str, Any]:
    groups: dict[Any, list[CallReport]] = {}
    for call in report.calls:
        groups.setdefault((call.region, call.use) if call.region else call.id, []).append(call)
    place = {call.id: number for number, calls in enumerate(groups.values()) for call in calls}
    edges = {(place[i], place[c.id]): None for c in report.calls for i in c.inputs if place[i] != place[c.id]}
    boxes = []
    for calls in groups.values():
        is_region = calls[0].region is not None
        label = calls[0].region if is_region else calls[0].label
        below = f"{len(calls)} calls" if is_region else calls[0].output
        boxes.append({"calls": [c.id for c in calls], "label": label, "below": below})
    return _drawn(boxes, edges)


def _drawn(boxes: list[dict[str, Any]], edges: Iterable[tuple[int, int]]) -> dict[str, Any]:
    edges = list(edges)
    widths = [_width(b["label"], b["below"]) for b in boxes]
    drawing = draw(widths, edges, _VIEW)
    for box, width, (x, y) in zip(boxes, widths, drawing.boxes, strict=True):
        box.update(x=x, y=y, w=width)
    lines = [{"from": a, "to": b, "d": _path(route)} for (a, b), route in zip(edges, drawing.routes, strict=True)]
    return {"boxes": boxes, "edges": lines, "width": drawing.width, "height": drawing.height}


def _path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path of straight lines, and of curves that leave and enter their ends vertically."""
    x0, y0 = points[0]
    path = [f"M{x0:g} {y0:g}"]
    for x, y in points[1:]:
        middle = (y0 + y) / 2
        if x == x0 or y == y0:
            path.append(f"V{y:g}" if x == x0 else f"H{x:g}")
        else:
            path.append(f"C{x0:g} {middle:g} {x:g} {middle:g} {x:g} {y:g}")
        x0, y0 = x, y
    return "".join(path)
