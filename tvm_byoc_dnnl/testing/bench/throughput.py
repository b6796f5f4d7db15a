"""Requests per second, and how long each of them waits: engines under load, one after the other in turns.

As many clients as there are groups of ``threads`` cores send a request each, and the next one when it is answered.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.files import write_text
from ...core.own_process import WorkerError
from ...frontends.onnx.inputs import fix_shapes
from ...runtime.comparison import gap
from ..models import random_inputs
from .engines import ENGINES, REFERENCE, Engine
from .measure import Spread
from .process import EngineProcess
from .run import Model

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Load:
    """How engines are put under load.

    Parameters
    ----------
    threads : int
        Threads of each call.
    rounds : int
        Turns of each engine.
    seconds : float
        Length of a turn.
    """

    threads: int = 1
    rounds: int = 5
    seconds: float = 2.0

    @property
    def clients(self) -> int:
        """Requests at the same time."""
        return max(1, len(os.sched_getaffinity(0)) // self.threads)


@dataclass
class Throughput:
    """One engine on one model; ``failure`` says why there are no figures.

    Attributes
    ----------
    rates : list of float
        Requests per second of each turn.
    latencies_ms : list of float
        Of every request, from sending it to its answer.
    """

    model: str
    engine: str
    label: str
    version: str = ""
    failure: str = ""
    rates: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """The latency within which so many requests are answered, in milliseconds."""
        return float(np.percentile(self.latencies_ms, percent))

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
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
    json_file: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> list[Throughput]:
    """Measure, and print the table to standard output.

    Parameters
    ----------
    models : sequence of Model
        What to run.
    engines : mapping of str to Engine
        What to run it on: the result of `choose_engines`.
    load : Load
        How much of it.
    json_file : str, optional
        Where to write the figures; ``-`` is standard output, in place of the table.
    shapes : mapping, optional
        Input name to shape, to fix dimensions that the models leave open.

    Returns
    -------
    list of Throughput
        One for each model and engine.
    """
    results = []
    with TemporaryDirectory() as folder:
        for model in models:
            proto = fix_shapes(model.read(), shapes or {})
            path = str(Path(folder, f"{model.name}.onnx"))
            onnx.save(proto, path)
            results += _measured(model.name, path, list(random_inputs(proto).values()), engines, load)
            Path(path).unlink()
    data = {"load": {**asdict(load), "clients": load.clients}, "results": [each.to_dict() for each in results]}
    if json_file != "-":
        Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(_table(results, load))
    if json_file is not None:
        text = json.dumps(data, indent=1)
        print(text) if json_file == "-" else write_text(json_file, text + "\n")
    return results


def _measured(
    model: str, path: str, inputs: list[np.ndarray], engines: Mapping[str, Engine], load: Load
) -> list[Throughput]:
    with EngineProcess(ENGINES[REFERENCE], load.threads) as reference:
        expected = reference.load(path, inputs)[2]
    results = [Throughput(model, name, engine.label) for name, engine in engines.items()]
    with ExitStack() as stack:
        processes = [stack.enter_context(EngineProcess(engine, load.threads)) for engine in engines.values()]
        for turn in range(-1, load.rounds):  # the first one loads the model
            for result, process in zip(results, processes, strict=True):
                if result.failure:
                    continue
                try:
                    if turn < 0:
                        result.version, _, outputs, _ = process.load(path, inputs)
                        if (error := gap(outputs, expected)) > process.engine.tolerance:
                            raise WorkerError(f"outputs differ by {error:.1e}")
                        process.serve(load.clients, min(0.5, load.seconds))
                    else:
                        time.sleep(0.05)  # the other engines' threads go to sleep
                        latencies, seconds = process.serve(load.clients, load.seconds)
                        result.rates.append(len(latencies) / seconds)
                        result.latencies_ms += latencies
                except WorkerError as error:
                    result.failure = str(error)
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
