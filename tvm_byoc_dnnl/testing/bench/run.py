"""Compare engines on several models, with progress on a terminal; and engines under load: requests per second, and how
long each of them waits. As many clients as there are groups of ``threads`` cores send the next when one is answered.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ...core.errors import InputError
from ...core.files import written
from ...core.machine import Neighbours
from ...frontends.onnx.importer import load_onnx
from ...frontends.onnx.inputs import fix_shapes
from ..models import LIGHT_MODELS, light_model, random_inputs
from .engines import ENGINES, Engine
from .measure import Comparison, EngineProcess, Settings, Spread, compare, failure_into, installed, reference_outputs
from .report import check_picture, to_json, to_picture, to_table


@dataclass(frozen=True)
class Model:
    """A model to measure: made or read only when its turn comes."""

    name: str
    read: Callable[[], onnx.ModelProto]


def find_model(name: str) -> Model:
    """A network of :data:`~tvm_byoc_dnnl.testing.models.LIGHT_MODELS` by its name, or an ``.onnx`` file."""
    if name in LIGHT_MODELS:
        return Model(name, lambda: light_model(name))
    if Path(name).is_file():
        return Model(Path(name).stem, lambda: load_onnx(Path(name)))
    raise InputError(f"no model `{name}`; expected an .onnx file or one of: {', '.join(LIGHT_MODELS)}")


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
            _stderr().print(f"{name}: left out, `{engine.requires}` is not installed (`make bench` installs it)")
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
    baseline: str | None = None,
    as_json: bool = False,
    inputs_of: Callable[[onnx.ModelProto], Mapping[str, np.ndarray]] = random_inputs,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    picture: Path | None = None,
) -> list[Comparison]:
    """Print a table, or ``as_json`` every sample."""
    if picture is not None:
        check_picture(picture)
    console = _stderr()
    _warn_if_busy(console)
    comparisons = []
    with _progress(console, len(models)) as show:
        for number, (model, proto, path) in enumerate(_saved(models, shapes or {})):

            def progress(what: str, share: float, number: int = number, name: str = model.name) -> None:
                show(f"{name}: {what}", number + share)

            if not console.is_terminal:
                console.print(f"{model.name}: {', '.join(engines)}")
            inputs = inputs_of(proto)
            comparisons.append(compare(model.name, path, inputs, engines, settings, baseline, progress))
    _show(to_table(comparisons, settings), to_json(comparisons, settings), as_json)
    if picture is not None:
        with written(picture) as aside:
            aside.write_bytes(to_picture(comparisons, settings, picture.suffix.removeprefix(".")))
    return comparisons


def _saved(
    models: Sequence[Model], shapes: Mapping[str, Sequence[int | str]]
) -> Iterator[tuple[Model, onnx.ModelProto, str]]:
    """Each model with these shapes, and its file, which is gone when the next one is asked for."""
    with TemporaryDirectory() as folder:
        for model in models:
            proto = fix_shapes(model.read(), shapes)
            path = Path(folder, f"{model.name}.onnx")
            onnx.save(proto, path)
            yield model, proto, str(path)
            path.unlink()


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

    @property
    def clients(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // self.threads)


@dataclass
class Throughput:
    """One engine on one model; ``failure`` says why there are no figures."""

    model: str
    engine: str
    label: str
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
        if self.failure:
            return {**entry, "failure": self.failure}
        latencies = {f"p{p}_ms": round(self.percentile(p), 4) for p in _PERCENTILES}
        rate = {"requests_per_s": asdict(Spread.of(self.rates)), "requests": len(self.latencies_ms)}
        return {**entry, **rate, **latencies}


def measure_throughput(
    models: Sequence[Model],
    engines: Mapping[str, Engine],
    load: Load,
    *,
    as_json: bool = False,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> list[Throughput]:
    """Print a table, or the figures ``as_json``."""
    results = []
    for model, proto, path in _saved(models, shapes or {}):
        results += _measured(model.name, path, list(random_inputs(proto).values()), engines, load)
    data = {"load": {**asdict(load), "clients": load.clients}, "results": [each.to_dict() for each in results]}
    _show(_table(results, load), data, as_json)
    return results


def _measured(
    model: str, path: str, inputs: list[np.ndarray], engines: Mapping[str, Engine], load: Load
) -> list[Throughput]:
    expected = reference_outputs(path, inputs, load.threads)
    results = [Throughput(model, name, engine.label) for name, engine in engines.items()]
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


def _table(results: Sequence[Throughput], load: Load) -> Table:
    failures = [f"{r.model}, {r.label}: {r.failure}" for r in results if r.failure]
    versions = ", ".join(dict.fromkeys(f"{r.label} {r.version}" for r in results if r.version))
    about = (
        f"{load.clients} requests at once, threads of each: {load.threads}, {load.rounds} turns of {load.seconds:g} s"
    )
    table = Table(caption=Text("\n".join([about, versions, *failures])), caption_justify="left")
    for name in ("model", "engine"):
        table.add_column(name)
    for name in ("requests/s", *(f"p{p}, ms" for p in _PERCENTILES)):
        table.add_column(name, justify="right")
    for result in results:
        figures = ["failed", *("-" for _ in _PERCENTILES)]
        if not result.failure:
            rate = Spread.of(result.rates)
            figures = [f"{rate.median:,.1f}", *(f"{result.percentile(p):.2f}" for p in _PERCENTILES)]
        table.add_row(result.model, result.label, *figures)
    return table
