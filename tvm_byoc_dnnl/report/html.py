"""The report as one self-contained page: no network, no library; data, drawing, style and script in one file."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from ..calls.model import CallReport, ReportData
from .layout import Drawing, draw
from .text import render_text

__all__ = ["render_html"]

_CHAR, _SMALL_CHAR, _PADDING = 7.4, 6.1, 24.0
_MIN_WIDTH, _MAX_WIDTH = 64.0, 230.0


def render_html(report: ReportData) -> str:
    """See `Report.to_html`."""
    title = f"{report.model or 'model'} on {', '.join(report.compilers) or 'TVM'}"
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    data = {"report": report.to_dict(), "drawings": {"calls": _of_calls(report), "regions": _of_regions(report)}}
    parts = {
        "title": html.escape(title),
        "text": html.escape(render_text(report)),
        # `<` is the only character that could end the script element early
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    for name, value in parts.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    return page


def _width(label: str, below: str) -> float:
    wanted = max(len(label) * _CHAR, len(below) * _SMALL_CHAR) + _PADDING
    return round(min(max(wanted, _MIN_WIDTH), _MAX_WIDTH), 1)


def _of_calls(report: ReportData) -> dict[str, Any]:
    """One box per call."""
    boxes = [{"calls": [c.id], "label": c.label, "below": c.output} for c in report.calls]
    return _drawn(boxes, [(i, c.id) for c in report.calls for i in c.inputs])


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
    drawing: Drawing = draw(widths, edges)
    for box, width, (x, y) in zip(boxes, widths, drawing.boxes, strict=True):
        box.update(x=x, y=y, w=width)
    lines = [{"from": a, "to": b, "d": _path(route)} for (a, b), route in zip(edges, drawing.routes, strict=True)]
    return {"boxes": boxes, "edges": lines, "width": drawing.width, "height": drawing.height}


def _path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path that leaves and enters every point vertically."""
    x0, y0 = points[0]
    path = [f"M{x0:g} {y0:g}"]
    for x, y in points[1:]:
        middle = (y0 + y) / 2
        path.append(f"V{y:g}" if x == x0 else f"C{x0:g} {middle:g} {x:g} {middle:g} {x:g} {y:g}")
        x0, y0 = x, y
    return "".join(path)
