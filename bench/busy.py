"""Calls on a machine that others use as well: ``python -m bench.busy [MODEL] [--check]``.

Ours with its default settings, ours with libgomp's own default (threads that wait awake for milliseconds) and ONNX
Runtime, beside 0, 1 and 2 processes that never rest: median and 95th percentile of a call. All take turns, so that a
slow minute hits each of them. Variables that say how OpenMP's threads wait are removed first: defaults are measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from tvm_byoc_dnnl.files import write_text
from tvm_byoc_dnnl.testing.bench.engines import ENGINES
from tvm_byoc_dnnl.testing.bench.process import EngineProcess
from tvm_byoc_dnnl.testing.bench.run import find_model
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, random_inputs

_OURS, _SPINNING, _ORT = "tvm-byoc-dnnl", "… with GOMP_SPINCOUNT=300000", "ONNX Runtime"
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_NEIGHBOURS = (0, 1, 2)
_SETTLE_S = 0.2
#: what `--check` holds: our 95th percentile beside two neighbours over ONNX Runtime's, and our median without any over
#: that with libgomp's default
_MOST_BUSY, _MOST_QUIET = 1.5, 1.05

Times = dict[str, dict[int, list[float]]]


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(path: str, inputs: list[np.ndarray], threads: int, rounds: int, calls: int) -> Times:
    """Milliseconds of each call, by engine and number of neighbours."""
    engines = {
        _OURS: ENGINES["byoc"],
        _SPINNING: replace(ENGINES["byoc"], env={"GOMP_SPINCOUNT": "300000"}),
        _ORT: ENGINES["onnxruntime"],
    }
    times: Times = {name: {count: [] for count in _NEIGHBOURS} for name in engines}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(EngineProcess(engine, threads)) for name, engine in engines.items()}
        for process in processes.values():
            process.load(path, inputs)
        for number in range(rounds):
            order = [*processes][number % len(processes) :] + [*processes][: number % len(processes)]
            for count in _NEIGHBOURS:
                with _busy(count):
                    for name in order:
                        times[name][count] += processes[name].time(2, calls)
    return times


def _p95(samples: list[float]) -> float:
    return float(np.percentile(samples, 95))


def _table(model: str, times: Times) -> Table:
    table = Table(title=f"{model}: median / 95th percentile of a call, ms, by busy processes beside it")
    table.add_column("")
    for count in _NEIGHBOURS:
        table.add_column(str(count), justify="right")
    for name, by_count in times.items():
        table.add_row(name, *(f"{statistics.median(s):.1f} / {_p95(s):.1f}" for s in by_count.values()))
    return table


@click.command()
@click.argument("model", default="squeezenet", metavar=f"[{'|'.join(LIGHT_MODELS)}|FILE.onnx]")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--calls", default=30, show_default=True, help="Calls of each engine per turn.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write all times there.")
@click.option("--check", is_flag=True, help=f"Fail above {_MOST_BUSY} × ONNX Runtime, or {_MOST_QUIET} × without care.")
def main(model: str, threads: int, rounds: int, calls: int, json_path: str | None, check: bool) -> None:
    """Median and 95th percentile of a call beside 0, 1 and 2 busy processes."""
    for name in _WAITING:
        os.environ.pop(name, None)
    chosen = find_model(model)
    proto = chosen.read()
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(proto, path)
        times = measure(str(path), list(random_inputs(proto).values()), threads, rounds, calls)
    Console(width=100).print(_table(chosen.name, times))
    if json_path:
        write_text(json_path, json.dumps({"model": chosen.name, "threads": threads, "milliseconds": times}))
    busy = _p95(times[_OURS][2]) / _p95(times[_ORT][2])
    quiet = statistics.median(times[_OURS][0]) / statistics.median(times[_SPINNING][0])
    print(f"95th percentile beside two busy processes: {busy:.2f} × ONNX Runtime's (at most {_MOST_BUSY})")
    print(f"median without any: {quiet:.2f} × that with libgomp's default (at most {_MOST_QUIET})")
    if check and (busy > _MOST_BUSY or quiet > _MOST_QUIET):
        sys.exit(1)


if __name__ == "__main__":
    main()
