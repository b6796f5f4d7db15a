"""The process of one engine: loads a model, runs it, times it, as told through a pipe.

Started as ``python -m tvm_byoc_dnnl.testing.bench.worker FD``; answers are ``("ok", value)`` or
``("error", text)``.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ...compilation import knowing, stage
from .engines import ENGINES, Run

__all__ = ["main"]


class _Worker:
    """The commands of a worker, one method each."""

    def __init__(self) -> None:
        self._run: Run
        self._inputs: list[np.ndarray] = []
        self._model = "", 1
        self._companions: dict[str, Callable[[], Any]] = {"": lambda: None}

    def load(
        self, module: str, path: str, threads: int, options: dict[str, Any], inputs: list[np.ndarray]
    ) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Version, seconds from the file to the first result (imports left out), that result, and seconds by stage."""
        loader = importlib.import_module(module).load
        self._model = path, threads
        start = time.perf_counter()
        with knowing(seconds={}) as compilation:
            self._run, version = loader(path, threads, **options)
            with stage("first call"):
                outputs = self._run(inputs)
        self._inputs = inputs
        return version, time.perf_counter() - start, [np.array(o) for o in outputs], compilation.seconds

    def time(self, warm_up: int, count: int, company: str = "") -> list[float]:
        """Milliseconds of each of ``count`` runs, after ``warm_up`` untimed ones.

        Before each of them this process does what the ``company`` says, which is not timed.
        """
        before = self._companion(company)
        samples = []
        for _ in range(warm_up + count):
            before()
            start = time.perf_counter()
            self._run(self._inputs)
            samples.append((time.perf_counter() - start) * 1e3)
        return samples[warm_up:]

    def _companion(self, name: str) -> Callable[[], Any]:
        """A matrix product of NumPy, or the same model in another engine."""
        if name == "numpy":
            matrix = np.random.default_rng(0).standard_normal((512, 512), dtype="float32")
            return lambda: matrix @ matrix
        if name not in self._companions:
            other = importlib.import_module(ENGINES[name].module).load(*self._model)[0]
            self._companions[name] = lambda: other(self._inputs)
        return self._companions[name]

    def serve(self, clients: int, seconds: float, blocking: bool = False) -> tuple[list[float], float]:
        """Milliseconds of each request, and seconds of all.

        Each client sends one, however late it begins, and the next when that is answered. With ``blocking`` each client
        is a thread that calls the engine itself, also where the engine takes requests.
        """
        submit = None if blocking else getattr(self._run, "submit", None)
        with ThreadPoolExecutor(clients) as pool:
            send = submit or (lambda inputs: pool.submit(self._run, inputs))
            latencies: list[float] = []
            started = time.perf_counter()
            end = started + seconds
            waiting: dict[Future[Any], float] = {}
            while True:
                while len(waiting) < clients:
                    begun = time.perf_counter()
                    if begun >= end and len(latencies) + len(waiting) >= clients:
                        break
                    waiting[send(self._inputs)] = begun
                if not waiting:
                    return latencies, time.perf_counter() - started
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    latencies.append((time.perf_counter() - waiting.pop(future)) * 1e3)
                    future.result()


def main() -> None:
    """Serve commands until the pipe closes."""
    # Libraries print to standard output; the parent's is for results only.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pipe, worker = Connection(int(sys.argv[1])), _Worker()
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(worker, command)(*arguments)))
        except Exception as error:  # whatever an engine raises is that engine's result
            first_line = (str(error).strip() or repr(error)).splitlines()[0]
            pipe.send(("error", f"{type(error).__name__}: {first_line}"))


if __name__ == "__main__":
    main()
