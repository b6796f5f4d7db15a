"""The report as one self-contained page: no network, no library; data, drawing, style and script in one file. Of
blocks of calls that a network repeats, as the layers of a transformer, one of each is drawn.
"""

from __future__ import annotations

import html
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ..calls.model import CallReport, ReportData
from .layout import draw
from .text import render_text


@dataclass(frozen=True)
class Repeat:
    """Equal blocks of calls that follow each other."""

    #: the id of the first call, the calls of one block, and how many blocks there are
    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        """The id after the last call of the last block."""
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
    parts = {
        "style": _file("page.css"),
        "script": "".join(map(_file, ("page.js", "times.js", "start.js"))),
        "title": html.escape(title),
        "text": html.escape(render_text(report)),
        # `<` is the only character that could end the script element early
        "data": json.dumps(
            {"report": report, "drawings": drawings, "timing": timing}, separators=(",", ":"), default=vars
        ).replace("<", "\\u003c"),
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
    """One box per use of a region, and per call that stays with TVM."""
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
