"""Comparisons as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from ...core.cpu import cpu_name
from ...vendors.namespaces import compilers, namespace
from .measure import Comparison, Measurement, Settings, Spread

_ENVIRONMENT = ("OMP_", "GOMP_", "KMP_", "TVM_")


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
    """One table of every model and engine; medians, with the quartiles in brackets."""
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
    """Everything that was measured, every sample included, and where."""
    prefixes = (*_ENVIRONMENT, *(p for name in compilers() for p in namespace(name).doctor.prefixes))
    return {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": sys.version.split()[0],
            "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(prefixes)},
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
