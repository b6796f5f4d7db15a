"""Calls in company: ``python -m bench.company [MODEL ...]``, each an .onnx file, a network of `bench.zoo` or of the
``onnx`` package, ``small`` (some 0.15 ms) or ``decoder_step`` (one token of a text decoder behind 64 others).

An application does not have the machine for itself. Each engine, in a process of its own, answers calls

* alone, when it has forgotten the company before;
* behind a product of two 512×512 matrices in NumPy, whose threads wait awake for a while;
* in turn with ONNX Runtime, which runs the same model in the same process;
* beside one and two other processes that never rest;
* under a quota of one and a half cores (control groups, version 1 or 2; needs root);
* of 2, 4 and 8 callers at the same time.

Median and 95th percentile of a call, and calls per second of many callers. All engines take turns, so that a slow
minute hits each of them. Variables that say how OpenMP's threads wait are removed first: defaults are measured. Our
time on one thread stands beside them, because no company should make a call slower than that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from bench.company_worker import CommandsInCompany
from bench.zoo import ZOO, zoo_model
from examples.open_models import Net, decoder
from tvm_byoc_dnnl.core.files import write_text
from tvm_byoc_dnnl.frontends.onnx.inputs import fix_shapes
from tvm_byoc_dnnl.testing.bench.engines import ENGINES
from tvm_byoc_dnnl.testing.bench.measure import EngineProcess, installed
from tvm_byoc_dnnl.testing.models import Model, find_model, random_inputs

_ENGINES = ("byoc", "onnxruntime", "openvino")
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_CALLERS = (2, 4, 8)
_QUOTA = 1.5
_REST_S = 0.25  # in which the threads of the engine before fall asleep
_SETTLE_S = 2.5  # of our calls, after which threads that came late are tried again
_MANY = 1_000_000
_WARM_UP = 10  # calls, behind which ours have found out about their company
_LONG_MS = 30.0  # calls of this length get three times as long

#: company -> what the engine's process does before each call, and the number of busy processes beside it
_COMPANY = {
    "alone": ("", 0),
    "behind a product of NumPy": ("numpy", 0),
    "in turn with ONNX Runtime": ("onnxruntime", 0),
    "beside 1 busy process": ("", 1),
    "beside 2 busy processes": ("", 2),
}


def _small() -> onnx.ModelProto:
    """Three layers of some dozens of microseconds each, as of a model that judges rows of a table."""
    net, x, shape = Net(0), "x", (16, 512)
    for _ in range(3):
        x = net("Relu", net("MatMul", x, net.weight(512, 512, std=512**-0.5)))
    return net.model({"x": (onnx.TensorProto.FLOAT, shape)}, {"y": (x, shape)})


def _decoder_step(past: int = 64) -> onnx.ModelProto:
    model = decoder(layers=6, width=512, heads=8, vocabulary=8192, positions=128)
    sizes = {"batch": 1, "length": 1, "past": past, "past + length": past + 1}
    dims = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    return fix_shapes(model, {k: tuple(sizes.get(d.dim_param, d.dim_value) for d in v) for k, v in dims.items()})


_NETWORKS = {"small": _small, "decoder_step": _decoder_step}
_ASKED = ("squeezenet", "mobilenet_v2", "resnet18", "resnet50", "bert_base", *_NETWORKS)


def _model(name: str) -> Model:
    if name in _NETWORKS:
        return Model(name, _NETWORKS[name])
    if name in ZOO:
        return Model(name, lambda: fix_shapes(zoo_model(name).model, dict(zoo_model(name).shapes)))
    return find_model(name)


Times = dict[str, dict[str, list[float]]]
"""Company -> engine -> milliseconds of each call, or calls per second of each turn."""


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _quota(cores: float) -> Iterator[Path | None]:
    """The list of processes of a control group that grants so many cores; ``None`` where none can be made."""
    period = 100_000
    for root, limit, text in (
        ("/sys/fs/cgroup", "cpu.max", f"{int(cores * period)} {period}"),
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", f"{int(cores * period)}"),
    ):
        folder = Path(root, f"tvm_byoc_dnnl_{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit).exists():  # else a folder like any other
                (folder / limit).write_text(text)
                yield folder / "cgroup.procs"
                return
        finally:
            time.sleep(_REST_S)  # until its processes have ended
            folder.rmdir()
    yield None


def _start(stack: ExitStack, threads: int, engines: Sequence[str]) -> dict[str, EngineProcess]:
    started = {}
    for name in engines:
        if installed(ENGINES[name]):
            started[name] = stack.enter_context(EngineProcess(ENGINES[name], threads, CommandsInCompany))
    started["byoc, one thread"] = stack.enter_context(EngineProcess(ENGINES["byoc"], 1, CommandsInCompany))
    return started


@dataclass(frozen=True)
class Settings:
    engines: Sequence[str]
    threads: int
    rounds: int
    calls: int  # of a turn of an engine, at most
    seconds: float  # of it


def measure(path: str, inputs: list[np.ndarray], settings: Settings) -> Times:
    """Milliseconds of each call, and calls per second, of each engine in each company."""
    times: Times = {}
    calls, seconds = settings.calls, settings.seconds

    def add(company: str, name: str, values: list[float]) -> None:
        times.setdefault(company, {}).setdefault(name, []).extend(values)

    def turn(company: str, name: str, process: EngineProcess, before: str = "") -> None:
        time.sleep(_REST_S)
        add(company, name, process.ask("time_beside", before, _WARM_UP, calls, seconds))

    with ExitStack() as stack:
        processes = _start(stack, settings.threads, settings.engines)
        for process in processes.values():
            process.load(path, inputs)
        if min(processes["byoc"].time(1, 3)) > _LONG_MS:
            seconds *= 3
        names = list(processes)
        for number in range(settings.rounds):
            order = names[number % len(names) :] + names[: number % len(names)]
            for company, (before, neighbours) in _COMPANY.items():
                with _busy(neighbours):
                    for name in order:
                        if company == "alone" and name.startswith("byoc"):
                            processes[name].ask("time_beside", "", 0, _MANY, _SETTLE_S)
                        turn(company, name, processes[name], before)
            for callers in _CALLERS:
                for name in order:
                    time.sleep(_REST_S)
                    done, taken = processes[name].ask("call_at_once", callers, seconds)
                    add(f"{callers} callers, calls/s", name, [len(done) / taken])
    with ExitStack() as stack:
        group = stack.enter_context(_quota(_QUOTA))
        if group is None:
            return times
        processes = _start(stack, settings.threads, settings.engines)
        for process in processes.values():
            group.write_text(str(process.process.pid))
            process.load(path, inputs)
        for _ in range(settings.rounds):
            for name, process in processes.items():
                turn(f"under a quota of {_QUOTA} cores", name, process)
    return times


def _table(model: str, times: Times) -> Table:
    engines = list(times["alone"])
    table = Table(title=f"{model}: median / 95th percentile of a call in ms, and calls per second")
    table.add_column("")
    for name in engines:
        table.add_column(ENGINES[name].label if name in ENGINES else "ours, one thread", justify="right")
    for company, by_engine in times.items():
        row = []
        for name in engines:
            samples = by_engine[name]
            middle, high = np.percentile(samples, [50, 95])
            row.append(f"{middle:.0f}" if company.endswith("calls/s") else f"{middle:.2f} / {high:.2f}")
        table.add_row(company, *row)
    return table


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL ...]")
@click.option("--engine", "engines", multiple=True, default=_ENGINES, show_default=True, type=click.Choice(_ENGINES))
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default="all cores")
@click.option("--rounds", default=1, show_default=True)
@click.option("--calls", default=200, show_default=True, help="Calls of each engine per turn, at most.")
@click.option("--seconds", default=1.0, show_default=True, help="Of a turn; three times as long for slow models.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write all times there.")
def main(models: tuple[str, ...], engines: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Median and 95th percentile of a call alone and in company, beside other engines."""
    for name in _WAITING:
        os.environ.pop(name, None)
    settings = Settings(list(dict.fromkeys(("byoc", *engines))), **options)
    results: dict[str, Times] = {}
    for model in [_model(name) for name in models or _ASKED]:
        proto = model.read()
        with TemporaryDirectory() as folder:
            path = str(Path(folder, "model.onnx"))
            onnx.save(proto, path)
            results[model.name] = measure(path, list(random_inputs(proto).values()), settings)
        Console(width=140).print(_table(model.name, results[model.name]))
        if output:
            write_text(output, json.dumps({"threads": settings.threads, "milliseconds": results}))


if __name__ == "__main__":
    main()
