"""This package and its peers side by side on one model, each in a process of its own.

Compare engines on several models, with progress on a terminal: as a table and as a picture for people (the time of
each engine on each model, with the quartiles as whiskers), and as JSON for programs.

Engines under load: requests per second, and how long each of them waits. As many clients as there are groups of
``threads`` cores send the next when one is answered.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ...core.errors import InputError
from ...core.files import written
from ...core.machine import Neighbours, cpu_name
from ...report.doctor import environment
from ..models import Model, random_inputs, saved
from .engines import ENGINES, Engine, byoc
from .measure import (
    Comparison,
    EngineProcess,
    Measurement,
    Settings,
    Spread,
    compare,
    failure_into,
    installed,
    reference_outputs,
)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(spread: Spread) -> str:
    return f"{_number(spread.median)} [{_number(spread.low)}-{_number(spread.high)}]"


def _ratio(comparison: Comparison, each: Measurement) -> str:
    baseline = comparison.baseline
    if each is baseline:
        return "1"
    return "-" if baseline.failure else _spread(each.ratio(baseline))


def _row(comparison: Comparison, each: Measurement) -> list[str]:
    if each.failure:
        return ["failed", "-", "-", "-"]
    times = _spread(each.milliseconds()), _ratio(comparison, each)
    return [*times, _number(each.first_result_s), "-" if math.isnan(each.error) else f"{each.error:.0e}"]


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
    baselines = dict.fromkeys(c.baseline.label for c in comparisons)
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
        baseline = comparison.baseline
        entry |= {
            "ms": asdict(each.milliseconds()),
            "ratio": None if baseline.failure else asdict(each.ratio(baseline)),
            "first_result_s": each.first_result_s,
            "first_results_s": [round(seconds, 4) for seconds, _ in each.first_results],
            "stages_s": {name: round(seconds, 4) for name, seconds in each.stages_s.items()},
            "max_error": None if math.isnan(each.error) else each.error,
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
                "baseline": c.baseline.engine,
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
        colours = ["#0b63c5" if m is comparison.baseline else "#b9c2ce" for m in found]
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


def _able(engines: Mapping[str, Engine], model: Model) -> dict[str, Engine]:
    """Those that run the model: a compiled library is for this package alone."""
    return {name: each for name, each in engines.items() if model.library is None or each.loader is byoc}


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def choose_engines(names: Sequence[str]) -> dict[str, Engine]:
    """The named rows of the table; says which ones are left out because they are not installed."""
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise InputError(f"no engine `{unknown[0]}`; there are: {', '.join(ENGINES)}")
    chosen = {name: ENGINES[name] for name in names}
    for name, engine in chosen.items():
        if not installed(engine):
            _stderr().print(f"{name}: left out, `{engine.requires}` is not installed: pip install {engine.requires}")
    return {name: engine for name, engine in chosen.items() if installed(engine)}


@contextmanager
def _progress(console: Console, models: int) -> Iterator[Callable[[str, float], None]]:
    """A function that shows the work in hand; the bar runs through all models once."""
    columns = SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=models)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _warn_if_busy(console: Console) -> None:
    with Neighbours() as others:
        time.sleep(1.0)
    if not others.quiet:
        console.print(f"warning: other processes use {others.share:.0%} of this machine; the numbers will jump")


def run(
    models: Sequence[Model],
    engines: Mapping[str, Engine],
    settings: Settings,
    as_json: bool = False,
    inputs_of: Callable[[onnx.ModelProto], Mapping[str, np.ndarray]] = random_inputs,
    given: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    picture: Path | None = None,
) -> list[Comparison]:
    """Print a table, or ``as_json`` every sample. The inputs are ``given``, or come from ``inputs_of``."""
    if picture is not None:
        check_picture(picture)
    console = _stderr()
    _warn_if_busy(console)
    comparisons = []
    with _progress(console, len(models)) as show:
        for number, (model, inputs, path) in enumerate(saved(models, shapes or {}, given, inputs_of)):

            def progress(what: str, share: float, number: int = number, name: str = model.name) -> None:
                show(f"{name}: {what}", number + share)

            able = _able(engines, model)
            if not console.is_terminal:
                console.print(f"{model.name}: {', '.join(able)}")
            comparisons.append(compare(model.name, path, inputs, able, settings, progress))
    _show(to_table(comparisons, settings), to_json(comparisons, settings), as_json)
    if picture is not None:
        with written(picture) as aside:
            aside.write_bytes(to_picture(comparisons, settings, picture.suffix.removeprefix(".")))
    return comparisons


def _show(table: Table, data: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(data, indent=1))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Load:
    #: threads of each call
    threads: int = 1
    #: turns of each engine
    rounds: int = 5
    #: length of a turn
    seconds: float = 2.0
    #: requests at once; by default one for each group of cores
    streams: int | None = None
    #: rows of each request, where the first dim of an input is open
    batch: int | None = None

    @property
    def clients(self) -> int:
        return self.streams or max(1, len(os.sched_getaffinity(0)) // self.threads)


@dataclass
class Throughput:
    """One engine on one model; ``failure`` says why there are no figures."""

    model: str
    engine: str
    label: str
    load: Load
    version: str = ""
    failure: str = ""
    #: requests per second of each turn
    rates: list[float] = field(default_factory=list)
    #: of every request, from sending it to its answer
    latencies_ms: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent))

    def to_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {k: getattr(self, k) for k in ("model", "engine", "version")}
        entry |= {"threads": self.load.threads, "streams": self.load.clients, "batch": self.load.batch}
        if self.failure:
            return {**entry, "failure": self.failure}
        latencies = {f"p{p}_ms": round(self.percentile(p), 4) for p in _PERCENTILES}
        rate = {"requests_per_s": asdict(Spread.of(self.rates)), "requests": len(self.latencies_ms)}
        return {**entry, **rate, **latencies}


def measure_throughput(
    models: Sequence[Model],
    engines: Mapping[str, Engine],
    loads: Sequence[Load],
    *,
    as_json: bool = False,
    given: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> list[Throughput]:
    """Print a table, or the figures ``as_json``."""
    results = []
    for load in loads:
        for model, inputs, path in saved(models, shapes or {}, given, batch=load.batch):
            results += _measured(model.name, path, list(inputs.values()), _able(engines, model), load)
    data = {"loads": [asdict(load) for load in loads], "results": [each.to_dict() for each in results]}
    _show(_table(results), data, as_json)
    return results


def _measured(
    model: str, path: str, inputs: list[np.ndarray], engines: Mapping[str, Engine], load: Load
) -> list[Throughput]:
    expected = reference_outputs(path, inputs, load.threads)
    results = [Throughput(model, name, engine.label, load) for name, engine in engines.items()]
    with ExitStack() as stack:
        processes = [stack.enter_context(EngineProcess(engine, load.threads)) for engine in engines.values()]
        for turn in range(-1, load.rounds):  # the first one loads the model
            for result, process in zip(results, processes, strict=True):
                if result.failure:
                    continue
                with failure_into(result):
                    if turn < 0:
                        result.version = process.load_right(path, inputs, expected)[0]
                        process.serve(load.clients, min(0.5, load.seconds))
                    else:
                        time.sleep(0.05)  # the other engines' threads go to sleep
                        latencies, seconds = process.serve(load.clients, load.seconds)
                        result.rates.append(len(latencies) / seconds)
                        result.latencies_ms += latencies
    return results


def _table(results: Sequence[Throughput]) -> Table:
    failures = [f"{r.model}, {r.label}: {r.failure}" for r in results if r.failure]
    versions = ", ".join(dict.fromkeys(f"{r.label} {r.version}" for r in results if r.version))
    load = results[0].load
    about = (
        f"threads of each request, requests at once (streams), rows of each; {load.rounds} turns of {load.seconds:g} s"
    )
    table = Table(caption=Text("\n".join([about, versions, *failures])), caption_justify="left")
    for name in ("model", "engine"):
        table.add_column(name)
    for name in ("threads", "streams", "batch", "requests/s", *(f"p{p}, ms" for p in _PERCENTILES)):
        table.add_column(name, justify="right")
    for result in results:
        figures = ["failed", *("-" for _ in _PERCENTILES)]
        if not result.failure:
            rate = Spread.of(result.rates)
            figures = [f"{rate.median:,.1f}", *(f"{result.percentile(p):.2f}" for p in _PERCENTILES)]
        load = result.load
        table.add_row(
            result.model, result.label, str(load.threads), str(load.clients), str(load.batch or "-"), *figures
        )
    return table
