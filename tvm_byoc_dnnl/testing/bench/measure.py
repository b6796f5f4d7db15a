"""Engines beside each other, fairly: one process each, short turns, the same model, inputs and thread count.

Every round, each engine rests, warms up and runs a short block. Ratios are formed inside a round, so that a
slow minute of the machine hits both sides; medians and quartiles over the rounds are what is reported. A fixed
matrix product is timed before and after each block: a block is run again if either took longer than on a quiet machine.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...core.own_process import Worker, WorkerError
from ...pipeline.executable import is_library
from ...runtime.comparison import gap
from .engines import ENGINES, PROBE, REFERENCE, Engine
from .worker import Commands

_PATIENCE_S = 900.0
_ROOT = Path(__file__).resolve().parents[3]


def installed(engine: Engine) -> bool:
    return importlib.util.find_spec(engine.requires) is not None


def _environment(engine: Engine, threads: int) -> dict[str, str]:
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # Modules that an engine imports late are read as bytecode, as where pip has installed them.
    ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | dict.fromkeys(counts, str(threads)) | ours | dict(engine.env)


class EngineProcess(Worker):
    """One engine in a process of its own: thread pools that spin would slow each other down in one."""

    def __init__(self, engine: Engine, threads: int, commands: type[Commands] = Commands) -> None:
        self.engine = engine
        self._threads = threads
        super().__init__(commands, _PATIENCE_S, _environment(engine, threads))

    def load(self, path: str, inputs: list[np.ndarray]) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Version, seconds until the first result, that result, seconds by stage."""
        return self.ask("load", self.engine.loader, path, self._threads, dict(self.engine.options), inputs)

    def load_right(
        self, path: str, inputs: list[np.ndarray], expected: list[np.ndarray] | None
    ) -> tuple[str, float, float, dict[str, float]]:
        """As `load`, with the error in place of the result; a `WorkerError` where it is too large."""
        version, seconds, outputs, stages = self.load(path, inputs)
        error, tolerance = math.nan if expected is None else gap(outputs, expected), self.engine.tolerance
        if error > tolerance:
            raise WorkerError(f"outputs differ by {error:.1e}, accepted are {tolerance:.0e}")
        return version, error, seconds, stages

    def time(self, warm_up: int, count: int) -> list[float]:
        """Milliseconds of each run."""
        return self.ask("time", warm_up, count)

    def serve(self, clients: int, seconds: float) -> tuple[list[float], float]:
        """Milliseconds of each request, and the seconds that all took."""
        return self.ask("serve", clients, seconds)


def reference_outputs(path: str, inputs: list[np.ndarray], threads: int) -> list[np.ndarray] | None:
    """``None`` of a compiled library, or without the engine to compare with."""
    if is_library(path) or not installed(ENGINES[REFERENCE]):
        return None
    with EngineProcess(ENGINES[REFERENCE], threads) as reference:
        return reference.load(path, inputs)[2]


Progress = Callable[[str, float], None]
"""Told what is being done, and how much of the model's work is done (0 to 1)."""

_LOADING = 0.3  # the part of the progress bar before the first round
_DISTURBED = 1.15  # times the probe's best: something else ran beside a block
_PROBE_RUNS = 3


@dataclass(frozen=True)
class Settings:
    #: threads of each engine
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    #: turns of each engine; each gives one ratio
    rounds: int = 20
    #: aimed length of one turn
    block_ms: float = 200.0
    #: pause before a turn, and before its timed runs, in which the threads of the others go to sleep
    rest_ms: float = 50.0
    #: a disturbed block is run again, at most so many times
    repeats: int = 3
    #: fresh processes of each engine that load the model; the first result is their median
    loads: int = 1


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass
class Measurement:
    """One engine on one model; ``repeated`` blocks were disturbed by others, ``disturbed`` ones to the end."""

    engine: str
    label: str
    version: str = ""
    first_results: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    error: float = 0.0
    blocks: list[list[float]] = field(default_factory=list)
    failure: str = ""
    repeated: int = 0
    disturbed: int = 0

    @property
    def first_result_s(self) -> float:
        """Seconds from the file to the first result: the median of the processes, or the lower one of its middle."""
        return self._first_result[0]

    @property
    def stages_s(self) -> dict[str, float]:
        return self._first_result[1]

    @property
    def _first_result(self) -> tuple[float, dict[str, float]]:
        return sorted(self.first_results, key=lambda each: each[0])[(len(self.first_results) - 1) // 2]

    def milliseconds(self) -> Spread:
        """Over every timed run."""
        return Spread.of([sample for block in self.blocks for sample in block])

    def ratio(self, baseline: Measurement) -> Spread:
        """This engine's time as a multiple of the baseline's, over the rounds that both took part in."""
        pairs = zip(self.blocks, baseline.blocks, strict=False)
        return Spread.of([statistics.median(a) / statistics.median(b) for a, b in pairs])


@dataclass
class Comparison:
    """Every engine on one model, beside the first one."""

    model: str
    measurements: list[Measurement]
    probe: Spread

    @property
    def baseline(self) -> Measurement:
        return self.measurements[0]

    @property
    def failures(self) -> list[Measurement]:
        return [m for m in self.measurements if m.failure]

    @property
    def quiet(self) -> bool:
        """Whether the fixed matrix product took nearly the same time throughout."""
        return self.probe.high <= 1.15 * self.probe.low


class _Contestant:
    """One engine's process, what it measured so far, and the length of its turns."""

    def __init__(self, name: str, engine: Engine, settings: Settings) -> None:
        self.result = Measurement(name, engine.label)
        self._engine, self._settings = engine, settings
        self._process: EngineProcess
        self._warm_up, self._count = 0, 1

    def load(self, path: str, inputs: list[np.ndarray], expected: list[np.ndarray] | None) -> ExitStack:
        with ExitStack() as stack:
            self._process = stack.enter_context(EngineProcess(self._engine, self._settings.threads))
            version, error, seconds, stages = self._process.load_right(path, inputs, expected)
            self.result.version, self.result.error = version, error
            self.result.first_results.append((seconds, stages))
            return stack.pop_all()

    def plan(self) -> None:
        once = statistics.median(self._process.time(1, 3))
        self._count = max(1, round(self._settings.block_ms / once))
        self._warm_up = max(1, self._count // 4)

    def turn(self, number: int, probe: _Probe) -> None:
        """Again if it was disturbed."""
        limit = self._engine.max_rounds
        if limit is not None and number >= limit:
            return
        for attempt in range(1 + self._settings.repeats):
            time.sleep(self._settings.rest_ms / 1e3)
            before = probe.sample()
            time.sleep(self._settings.rest_ms / 1e3)  # NumPy's threads wait awake for 26 ms
            block = self._process.time(self._warm_up, self._count)
            is_quiet = probe.is_quiet(before, probe.sample())
            self.result.repeated += attempt > 0
            if is_quiet:
                break
        self.result.disturbed += not is_quiet
        self.result.blocks.append(block)


class _Probe:
    """A fixed piece of work, whose time says whether the machine was quiet."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self.samples: list[float] = []

    def sample(self) -> float:
        """The best of a few."""
        self.samples.append(min(self._process.time(0, _PROBE_RUNS)))
        return self.samples[-1]

    def is_quiet(self, *samples: float) -> bool:
        return max(samples) <= _DISTURBED * min(self.samples)


@contextmanager
def failure_into(result: Any) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        result.failure = str(error)


def _no_progress(what: str, share: float) -> None:
    pass


def compare(
    model: str,
    path: str,
    inputs: Mapping[str, np.ndarray],
    engines: Mapping[str, Engine],
    settings: Settings | None = None,
    progress: Progress = _no_progress,
) -> Comparison:
    """Measure engines on one file, beside the first; one that fails says why."""
    settings = settings or Settings()
    values = list(inputs.values())
    with ExitStack() as stack:
        progress(f"{ENGINES[REFERENCE].label}: reference outputs", 0.0)
        expected = reference_outputs(path, values, settings.threads)
        everybody = [_Contestant(name, engine, settings) for name, engine in engines.items()]
        loads = [(number, each) for number in range(settings.loads) for each in everybody]
        for done, (number, each) in enumerate(loads):
            if each.result.failure:
                continue
            progress(f"{each.result.label}: load, compile, first run", _LOADING * done / len(loads))
            with failure_into(each.result), each.load(path, values, expected) as process:
                if number == settings.loads - 1:
                    each.plan()
                    stack.enter_context(process.pop_all())  # it has turns
        work = stack.enter_context(EngineProcess(PROBE, settings.threads))
        work.load(path, [])
        probe = _Probe(work)
        _take_turns(everybody, probe, settings.rounds, progress)
    return Comparison(model, [each.result for each in everybody], Spread.of(probe.samples))


def _take_turns(everybody: Sequence[_Contestant], probe: _Probe, rounds: int, progress: Progress) -> None:
    for _ in range(rounds):
        probe.sample()
    probe.samples[:] = [min(probe.samples)]  # the first ones are slow anywhere
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}", _LOADING + (1 - _LOADING) * number / rounds)
        first = number % len(everybody)
        for each in [*everybody[first:], *everybody[:first]]:
            if not each.result.failure:
                with failure_into(each.result):
                    each.turn(number, probe)
