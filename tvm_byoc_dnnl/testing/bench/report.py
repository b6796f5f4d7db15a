"""Comparisons as a table and as a picture for people (the time of each engine on each model, with the quartiles as
whiskers), and as JSON for programs.
"""

from __future__ import annotations

import io
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ...core.errors import InputError
from ...core.machine import cpu_name
from ...report.doctor import environment
from .measure import Comparison, Measurement, Settings, Spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(spread: Spread) -> str:
    return f"{_number(spread.median)} [{_number(spread.low)}-{_number(spread.high)}]"


def _ratio(comparison: Comparison, each: Measurement) -> str:
    baseline = comparison.of(comparison.baseline)
    if each is baseline:
        return "1"
    return "-" if baseline.failure else _spread(each.ratio(baseline))


def _row(comparison: Comparison, each: Measurement) -> list[str]:
    if each.failure:
        return ["failed", "-", "-", "-"]
    times = _spread(each.milliseconds()), _ratio(comparison, each)
    return [*times, _number(each.first_result_s), f"{each.error:.0e}"]


def _caption(comparisons: Sequence[Comparison], settings: Settings) -> str:
    everything = [m for c in comparisons for m in c.measurements]
    versions = dict.fromkeys(f"{m.label} {m.version}" for m in everything if m.version)
    lines = [
        f"{settings.threads} threads, {settings.rounds} rounds; median [quartiles]; ratio above 1: slower",
        ", ".join(versions),
    ]
    lines += [f"{c.model}, {m.label}: {m.failure}" for c in comparisons for m in c.failures]
    lines += [
        f"{c.model}, {m.label}, first result: " + ", ".join(f"{name} {_number(s)}" for name, s in m.stages_s.items())
        for c in comparisons
        for m in c.measurements
        if not m.failure and len(m.stages_s) > 1
    ]
    noisy = [c.model for c in comparisons if not c.quiet]
    if noisy:
        lines.append(f"The machine was not quiet, measure again: {', '.join(noisy)}")
    return "\n".join(lines)


def to_table(comparisons: Sequence[Comparison], settings: Settings) -> Table:
    baselines = dict.fromkeys(c.of(c.baseline).label for c in comparisons)
    table = Table(caption=Text(_caption(comparisons, settings)), caption_justify="left")
    table.add_column("model")
    table.add_column("engine")
    table.add_column("ms per run", justify="right")
    table.add_column(f"÷ {' / '.join(baselines)}", justify="right")
    table.add_column("first result, s", justify="right")
    table.add_column("max error", justify="right")
    for comparison in comparisons:
        for number, each in enumerate(comparison.measurements):
            cells = [comparison.model if number == 0 else "", each.label, *_row(comparison, each)]
            table.add_row(*map(Text, cells))
        table.add_section()
    return table


def _measurement(comparison: Comparison, each: Measurement) -> dict[str, Any]:
    entry: dict[str, Any] = {"engine": each.engine, "version": each.version, "failure": each.failure or None}
    if not each.failure:
        baseline = comparison.of(comparison.baseline)
        entry |= {
            "ms": asdict(each.milliseconds()),
            "ratio": None if baseline.failure else asdict(each.ratio(baseline)),
            "first_result_s": each.first_result_s,
            "first_results_s": [round(seconds, 4) for seconds, _ in each.first_results],
            "stages_s": {name: round(seconds, 4) for name, seconds in each.stages_s.items()},
            "max_error": each.error,
            "blocks_repeated": each.repeated,
            "blocks_disturbed": each.disturbed,
            "blocks_ms": [[round(sample, 4) for sample in block] for block in each.blocks],
        }
    return entry


def to_json(comparisons: Sequence[Comparison], settings: Settings) -> dict[str, Any]:
    return {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": sys.version.split()[0],
            "environment": environment(),
        },
        "settings": asdict(settings),
        "models": [
            {
                "model": c.model,
                "baseline": c.baseline,
                "quiet": c.quiet,
                "probe_ms": asdict(c.probe),
                "engines": [_measurement(c, each) for each in c.measurements],
            }
            for c in comparisons
        ],
    }


_FORMATS = (".svg", ".png", ".pdf")
_LEFT_OUT = "engines that failed are left out"


def check_picture(path: Path) -> None:
    """An `InputError` before an hour of measuring, where there can be no picture."""
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
