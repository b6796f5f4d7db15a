"""Whole models in turns, each in a process of its own: in one, the thread pools of libraries disturb each other.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tvm

from ..core.compilation import compiling, knowing
from ..core.own_process import Ended, Worker, answer
from ..ir.signature import inputs_of
from ..pipeline.executable import ByocExecutable
from ..pipeline.name import PIPELINE
from ..regions.cost import shape_of, usual_sizes
from ..regions.failure import Failure, describe
from .candidates import known_times
from .costs import callable_of
from .database import Database
from .measure import Timing, Turns, race, summary

_logger = logging.getLogger("tvm_byoc_dnnl")

_SILENCE_S = 120.0  # that a worker may be silent, and besides
_SHARE = 10  # so many times as long as it took to compile the model; or, in a turn, to load it and to call it twice


def race_apart(
    models: Sequence[tuple[tvm.IRModule, Database | None]], target: Any, rounds: int, deadline: float = math.inf
) -> list[Timing | Failure]:
    """The times of partitioned models, in turns. What no other process can load is measured in this one.

    A model with which its process hangs or dies has a failure instead.

    Parameters
    ----------
    models : sequence of tuple
        Partitioned modules with inputs of the same shapes, each with the times by which libraries choose.
    target : str or Target
        TVM's target for the calls that stay with TVM.
    rounds : int
        Turns of each.
    deadline : float
        By `time.perf_counter`. Where it would be passed, the models from the third on are left out of the result, and
        there are no more than three turns.
    """
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tvm-byoc-tune-")))
            runners: list[_Runner] = []
            started = time.perf_counter()
            for number, (mod, choices) in enumerate(models):
                begun = time.perf_counter()
                if number >= 2 and _would_pass(deadline, started, number):
                    break
                path = folder / f"{number}.so"
                with compiling(), knowing(times=known_times(mod, choices)):
                    ex = tvm.compile(mod, target=target, relax_pipeline=PIPELINE)
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
    """Seconds of one call of a model; infinitely many where its process hung or died."""
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
    """A process that has loaded one library.

    Parameters
    ----------
    library : Path
        The exported model.
    shapes : mapping
        Of its inputs.
    patience_s : float
        Seconds that an answer may take.

    Attributes
    ----------
    blocks : list of tuple
        Of each turn: seconds of one call, and whether other processes left the cores alone.
    failure : Failure or None
        Why it has no more turns.
    """

    def __init__(self, library: Path, shapes: Mapping[str, Sequence[int]], patience_s: float) -> None:
        self.blocks: list[tuple[float, bool]] = []
        self.failure: Failure | None = None
        self._model = str(library), shapes
        super().__init__(__name__, patience_s, quiet=True)

    def start(self) -> None:
        """Wait until the model is loaded and was called.

        Raises
        ------
        WorkerError
            If another process cannot load it.
        """
        begun = time.perf_counter()
        self.ask("load", *self._model)
        self.patience_s = max(self.patience_s, _SHARE * (time.perf_counter() - begun))

    def turn(self) -> None:
        """A block of calls; nothing after a failure."""
        if self.failure is None and (block := self.ask("turn")) is not None:
            self.blocks.append(block)

    def ask(self, question: str, *arguments: Any) -> Any:
        """What the process says; ``None`` where it failed."""
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
    """What the process can be asked."""

    def load(self, library: str, shapes: Mapping[str, Sequence[int]]) -> None:
        from ..runtime.runner import load

        runner = load(library)
        tensors = runner.random_tensors(shapes=shapes)
        self._turns = Turns(lambda: runner.run_tvm(*tensors))

    def turn(self) -> tuple[float, bool]:
        return self._turns.next()


if __name__ == "__main__":
    answer(_Commands())
