"""tune: the placement of a model, found by measurement on this machine.

Whole models in turns, each in a process of its own: in one, the thread pools of libraries disturb each other.

this process                       worker
  export_library of each model ──>   load it, call it twice
  turn ────────────────────────>     a block of calls
  seconds, quiet  <─────────────     and sleep until the next turn

A worker that does not answer, or dies of its model, is ended; the others go on.
"""

from __future__ import annotations

import logging
import math
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import compiling
from ..core.entries import content_key
from ..core.errors import InputError, names_of
from ..core.own_process import Ended, Worker
from ..core.tensor_info import shape_options
from ..core.verdict import Failure, describe
from ..frontends import to_relax
from ..graph.cost import shape_of, usual_sizes
from ..ir.relax_utils import inputs_of
from ..pipeline import PIPELINE
from ..pipeline.executable import ByocExecutable
from ..vendors.namespaces import HOST, changed_options, check_arguments, with_options, with_precision
from .database import Database, Placement, Timing, Turns, content_of, race, summary
from .plans import Costs, Planner, callable_of, known_times, measure_candidates, prepared
from .search import search

_logger = logging.getLogger("tvm_byoc_dnnl")

_SILENCE_S = 120.0  # that a worker may be silent, and besides
_SHARE = 10  # so many times as long as it took to compile the model; or, in a turn, to load it and to call it twice


def race_apart(
    models: Sequence[tuple[tvm.IRModule, Database | None]],
    target: Any,
    rounds: int,
    deadline: float = math.inf,
    at_least: int = 2,
) -> list[Timing | Failure]:
    """Times of partitioned models in turns, each in a process; after the deadline, of ``at_least``, in three turns."""
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tvm-byoc-tune-")))
            runners: list[_Runner] = []
            started = time.perf_counter()
            for number, (mod, choices) in enumerate(models):
                begun = time.perf_counter()
                if number >= at_least and _would_pass(deadline, started, number):
                    break
                path = folder / f"{number}.so"
                with compiling():
                    pipeline = relax.get_pipeline(PIPELINE, times=known_times(mod, choices))
                    ex = tvm.compile(mod, target=target, relax_pipeline=pipeline)
                ByocExecutable(ex.mod).export_library(path)
                patience = _SILENCE_S + _SHARE * (time.perf_counter() - begun)
                runners.append(stack.enter_context(_Runner(path, _shapes(mod), patience)))
            for runner in runners:
                runner.start()
            for turn in range(rounds):
                if turn >= 3 and time.perf_counter() > deadline:
                    break
                for runner in runners:
                    runner.turn()
            return [runner.failure or summary(runner.blocks) for runner in runners]
    except Exception as error:  # a vendor that is registered in this process only, no compiler to link with
        _logger.info("whole models are timed in one process: %s", describe(error))
        return [*race([callable_of(mod, target, choices) for mod, choices in models], rounds)]


def seconds_of(result: Timing | Failure) -> float:
    return math.inf if isinstance(result, Failure) else result.seconds


def _would_pass(deadline: float, started: float, done: int) -> bool:
    """Whether one more of several equally long steps ends after the deadline."""
    now = time.perf_counter()
    return now + (now - started) / done > deadline


def _shapes(mod: tvm.IRModule) -> dict[str, list[int]]:
    main = mod["main"]
    sizes = usual_sizes(mod)
    return {info.name: list(shape_of(p.ty, sizes) or ()) for info, p in zip(inputs_of(main), main.params, strict=True)}


class _Runner(Worker):
    """A process with one library; ``blocks`` has seconds of a call, and whether others left the cores alone."""

    def __init__(self, library: Path, shapes: Mapping[str, Sequence[int]], patience_s: float) -> None:
        self.blocks: list[tuple[float, bool]] = []
        self.failure: Failure | None = None
        self._model = str(library), shapes
        super().__init__(_Commands, patience_s, quiet=True)

    def start(self) -> None:
        begun = time.perf_counter()
        self.ask("load", *self._model)
        self.patience_s = max(self.patience_s, _SHARE * (time.perf_counter() - begun))

    def turn(self) -> None:
        if self.failure is None and (block := self.ask("turn")) is not None:
            self.blocks.append(block)

    def ask(self, question: str, *arguments: Any) -> Any:
        """``None`` where the process failed."""
        try:
            return super().ask(question, *arguments)
        except Ended as end:
            if end.status is not None and end.status >= 0:
                raise
            silent = f"gave no answer for {self.patience_s:.0f} s"
            how = silent if end.status is None else f"ended by {signal.Signals(-end.status).name}"
            self.failure = Failure("run", f"its process {how}")
            return None


class _Commands:
    def load(self, library: str, shapes: Mapping[str, Sequence[int]]) -> None:
        from ..runtime import load

        runner = load(library, runtime="tvm")
        tensors = runner.random_tensors(shapes=shapes)
        self._turns = Turns(lambda: runner.run_tvm(*tensors))

    def turn(self) -> tuple[float, bool]:
        return self._turns.next()


_ROUNDS = 7
_GAIN = 0.01  # of the whole model: for less, no mixture takes the place of the default placement or of one compiler
_FINALISTS = 2  # that are timed as whole models beside the default placement and each compiler alone
_SEARCH_SHARE = 0.6  # of the budget; then what a library can choose from is measured, and the whole model
_RACE_SHARE = 0.15  # of the budget, at least: the last comparison, of the whole model
_RACE_MEASUREMENTS = 4  # it takes about as long as so many of the longest measurements


def tune(
    model: Any,
    compiler: str | Sequence[str],
    *,
    budget: float = 120.0,
    database: str | PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    precision: str = "float32",
    weights: str | None = None,
    activations: str | None = None,
    int8: str = "exact",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    target: str | tvm.target.Target = "llvm",
    progress: Callable[[str], None] | None = None,
) -> Placement:
    """Find by measurement which compiler should get which call of a model.

    Every region of a candidate placement is compiled alone and timed on this machine, under the threads in use; equal
    ones are timed once. In the end the whole model is timed with the placement that was found, with the default one and
    with each compiler alone, in turns, and the fastest one is the result. Where a vendor has a cost model of its own
    (`register_cost`), its word is taken instead.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model. Of its open dims, a size to measure with has to be known: ``shapes={"x": ["N:8", 3]}``.
    compilers : sequence of str
        Namespaces in order of priority; ``"tvm"`` may stand last, and is a candidate in any case.
    budget : float
        Seconds for the search. The measurement that is running then is finished.
    database : path-like, optional
        File of times, read before and extended by each measurement, also when the search is interrupted.
    shapes, precision, weights, activations, int8, options, target
        As in `compile`.
    progress : callable, optional
        Called with a line about each measurement and each improvement.

    Returns
    -------
    Placement
        A dict for ``compile(model, compiler, place=...)``; with the same ``database=`` `compile` finds it itself.

    Raises
    ------
    InputError
        If a compiler is not registered, an input has open dims, or the file is no database.
    """
    names = _without_host(compiler)
    check_arguments(shapes=shapes, options=options, database=database, target=target)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise InputError(f"budget is {budget!r}; expected a number of seconds above 0")
    started = time.perf_counter()
    chosen = {"precision": precision, "weights": weights, "activations": activations, "int8": int8}
    options = with_precision(names, options, chosen)
    tell = progress or _logger.info
    mod = with_options(to_relax(model, shapes=shapes), options)
    _check_sizes(mod)
    known = Database(None if database is None else Path(database))
    planner = Planner(prepared(mod, names), names)
    costs = Costs(known, measures=True, target=target, tell=tell)
    found = search(planner, costs, budget * _SEARCH_SHARE, tell)
    result = Placement(found.placement)
    result.tried = found.tried
    if not costs.has_models:
        ways = [found.default, *found.alone.values(), *found.others[:_FINALISTS]]
        ways = [way for number, way in enumerate(ways) if way not in ways[:number]]
        mods = [planner.partitioned(None if way is found.default else way) for way in ways]
        race_s = max(_RACE_SHARE * budget, min(_RACE_MEASUREMENTS * costs.longest_s, budget / 2))
        end = started + budget
        costs.measured += sum(measure_candidates(each, known, end - race_s, tell) for each in mods)
        result = _fastest(result, ways, mods, known, target, end, tell, found.alone)
    result.measured = costs.measured
    known.note_placement(_identity(mod), names, result, result.choices is not None)
    return result


def _fastest(
    result: Placement,
    ways: Sequence[Mapping[str, str]],
    mods: Sequence[tvm.IRModule],
    known: Database,
    target: str | tvm.target.Target,
    deadline: float,
    tell: Callable[[str], None],
    alone: Mapping[str, Mapping[str, str]],
) -> Placement:
    """The fastest as whole models in turns; the default one, first, also runs by the libraries' own models."""
    choices = known if known.has_candidates else None
    simple = [0, *(way for way in range(1, len(ways)) if ways[way] in alone.values())]
    runs = [(0, None), *((way, choices) for way in range(1, len(ways)))]
    if choices is not None:
        runs.insert(len(simple) + 1, (0, choices))
    if len(runs) == 1:
        return result
    tell(f"whole model: the default placement and {len(runs) - 1} others")
    timings = race_apart([(mods[way], times) for way, times in runs], target, _ROUNDS, deadline, len(simple) + 1)
    tell(", ".join(f"failed: {t.reason}" if isinstance(t, Failure) else f"{1e3 * t.seconds:.3f} ms" for t in timings))
    seconds = [seconds_of(timing) for timing in timings]
    best = min(range(len(seconds)), key=lambda i: (seconds[i], runs[i][0]))
    plain = min(range(len(simple)), key=lambda i: (seconds[i], i))
    if seconds[best] >= seconds[plain] * (1 - _GAIN):
        best = plain
    way, times = runs[best]
    chosen = Placement(ways[way])
    chosen.tried, chosen.choices = result.tried, times
    chosen.alone_seconds = {
        name: min(s for s, (way, _) in zip(seconds, runs) if ways[way] == owners) for name, owners in alone.items()
    }
    chosen.seconds, chosen.default_seconds = (s if math.isfinite(s) else None for s in (seconds[best], seconds[0]))
    return chosen


def placement_for(mod: tvm.IRModule, compilers: str | Sequence[str], database: str | PathLike[str]) -> Placement:
    """What `tune` found for a model; for another the cheapest by the times of equal regions, else the default."""
    path = Path(database)
    if not path.is_file():
        raise InputError(f"no database {path}; byoc.tune(..., database={str(path)!r}) writes one")
    known = Database(path)
    names = _without_host(compilers)
    noted = known.placement_of(_identity(mod), names)
    if noted is None:
        found = search(Planner(prepared(mod, names), names), Costs(known, measures=False), float("inf"))
        noted = dict(found.placement), True
    placement = Placement(noted[0])
    placement.choices = known if noted[1] and known.has_candidates else None
    return placement


def _identity(mod: tvm.IRModule) -> str:
    functions = sorted((gv.name_hint, f) for gv, f in mod.functions.items() if isinstance(f, relax.Function))
    options = changed_options(mod)
    return content_key([*(content_of(f, mod) for _, f in functions), *([repr(options)] if options else [])])[:24]


def _without_host(compilers: str | Sequence[str]) -> list[str]:
    names = names_of("compiler", [compilers] if isinstance(compilers, str) else compilers)
    if HOST in names[:-1]:
        raise InputError(f"compiler={names}: {HOST!r} takes every call, so nothing may come after it; put it last")
    names = [name for name in names if name != HOST]
    check_arguments(compiler=names)
    return names


def _check_sizes(mod: tvm.IRModule) -> None:
    inputs = inputs_of(mod["main"])
    symbols = relax.analysis.defined_symbolic_vars(mod["main"])
    unknown = sorted({str(s.name) for s in symbols} - usual_sizes(mod).keys())
    if unknown:
        raise InputError(
            f"the model has open dims ({', '.join(unknown)}), and a time needs sizes; fix them, with your own sizes: "
            f"{shape_options(inputs)}; or keep them open and say for which sizes to measure: N:8 in place of 8"
        )
