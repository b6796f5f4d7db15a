"""Comparisons as a picture: the time of each engine on each model, with the quartiles as whiskers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import InputError
from .measure import Comparison, Settings

_FORMATS = (".svg", ".png", ".pdf")
_LEFT_OUT = "engines that failed are left out"


def check_picture(path: Path) -> None:
    """Say before an hour of measuring what would stop the picture.

    Raises
    ------
    InputError
        If the file's ending is no picture's, or Matplotlib is not installed.
    """
    if path.suffix not in _FORMATS:
        raise InputError(f"a picture ends with {', '.join(_FORMATS)}; got {path.name}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("a picture needs Matplotlib: pip install 'tvm-byoc-dnnl[bench]'") from error


def to_picture(comparisons: Sequence[Comparison], settings: Settings, file_format: str) -> bytes:
    """One row of bars for each model, each row with its own scale; ``file_format`` is ``svg``, ``png`` or ``pdf``."""
    from matplotlib.figure import Figure

    bars = [len(c.measurements) for c in comparisons]
    figure = Figure(figsize=(8, 0.9 + sum(0.34 * n + 0.45 for n in bars)), layout="constrained")
    rows = figure.subplots(len(comparisons), squeeze=False, height_ratios=[n + 1 for n in bars])[:, 0]
    for axes, comparison in zip(rows, comparisons):
        found = [m for m in comparison.measurements if not m.failure]
        times = [m.milliseconds() for m in found]
        middle = [t.median for t in times]
        whiskers = [[t.median - t.low for t in times], [t.high - t.median for t in times]]
        colours = ["#0b63c5" if m.engine == comparison.baseline else "#b9c2ce" for m in found]
        drawn = axes.barh([m.label for m in found], middle, 0.66, xerr=whiskers, color=colours, ecolor="#5c6675")
        axes.bar_label(drawn, [f"{v:,.0f} ms" if v >= 100 else f"{v:.3g} ms" for v in middle], padding=8, fontsize=9)
        axes.set_title(comparison.model + ("" if comparison.quiet else " (the machine was not quiet)"), loc="left")
        axes.margins(x=0.2)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    note = f"; {_LEFT_OUT}" if any(c.failures for c in comparisons) else ""
    figure.supxlabel(
        f"milliseconds per run, {settings.threads} threads, {settings.rounds} rounds; median and quartiles{note}",
        fontsize=9,
    )
    written = io.BytesIO()
    figure.savefig(written, format=file_format, dpi=150)
    return written.getvalue()
