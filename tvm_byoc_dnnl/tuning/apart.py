"""Whole models in turns, each in a process of its own: in one, the thread pools of libraries disturb each other.

this process                       worker: python -m tvm_byoc_dnnl.tuning.apart LIBRARY SHAPES
  export_library of each model ──>   load it, call it twice
  "turn" ──────────────────────>     a block of calls
  seconds, quiet  <─────────────     and sleep until the next turn
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tvm

from ..cost import shape_of, usual_sizes
from ..pipeline.byoc import PIPELINE
from ..pipeline.executable import ByocExecutable
from ..regions.failure import describe
from ..signature import inputs_of
from .candidates import choosing_by
from .costs import callable_of
from .database import Database
from .measure import Timing, Turns, race, summary

__all__ = ["race_apart"]

_logger = logging.getLogger("tvm_byoc_dnnl")


def race_apart(
    models: Sequence[tuple[tvm.IRModule, Database | None]], target: Any, rounds: int, deadline: float = math.inf
) -> list[Timing]:
    """The times of partitioned models, in turns. What no other process can load is measured in this one.

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
            workers: list[_Worker] = []
            started = time.perf_counter()
            for number, (mod, choices) in enumerate(models):
                if number >= 2 and _would_pass(deadline, started, number):
                    break
                path = folder / f"{number}.so"
                with choosing_by(mod, choices):
                    ex = tvm.compile(mod, target=target, relax_pipeline=PIPELINE)
                ByocExecutable(ex.mod).export_library(path)
                workers.append(stack.enter_context(_Worker(path, _shapes(mod))))
            for worker in workers:
                worker.answer()
            blocks: list[list[tuple[float, bool]]] = [[] for _ in workers]
            for turn in range(rounds):
                if turn >= 3 and time.perf_counter() > deadline:
                    break
                for worker, mine in zip(workers, blocks, strict=True):
                    mine.append(worker.turn())
            return [summary(each) for each in blocks]
    except Exception as error:  # a vendor that is registered in this process only, no compiler to link with
        _logger.info("whole models are timed in one process: %s", describe(error))
        return race([callable_of(mod, target, choices) for mod, choices in models], rounds)


def _would_pass(deadline: float, started: float, done: int) -> bool:
    """Whether one more of several equally long steps ends after the deadline."""
    now = time.perf_counter()
    return now + (now - started) / done > deadline


def _shapes(mod: tvm.IRModule) -> dict[str, list[int]]:
    main = mod["main"]
    with usual_sizes(mod):
        return {info.name: list(shape_of(p.ty) or ()) for info, p in zip(inputs_of(main), main.params, strict=True)}


class _Worker:
    """A process that has loaded one library."""

    def __init__(self, library: Path, shapes: Mapping[str, Sequence[int]]) -> None:
        self._errors = library.with_suffix(".err")
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(library), json.dumps(shapes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is the parent's: the worker ends when its input does
            )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._errors.read_text().strip().splitlines()
            raise RuntimeError(f"its process ended: {said[-1] if said else 'without a word'}")
        return json.loads(line)

    def turn(self) -> tuple[float, bool]:
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        seconds, quiet = self.answer()
        return float(seconds), bool(quiet)


def _serve(library: str, shapes: Mapping[str, Sequence[int]]) -> None:
    from ..runner import load

    runner = load(library)
    tensors = runner.random_tensors(shapes=shapes)
    turns = Turns(lambda: runner.run_tvm(*tensors))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(turns.next()), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
