"""The process of one engine: loads a model, runs it, times it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from ...core.compilation import compiling, stage
from ...core.own_process import answer
from .engines import ENGINES, Load, Run


class _Commands:
    def __init__(self) -> None:
        self._run: Run
        self._inputs: list[np.ndarray] = []
        self._model = "", 1
        self._companions: dict[str, Callable[[], Any]] = {"": lambda: None}

    def load(
        self, loader: Callable[[], Load], path: str, threads: int, options: dict[str, Any], inputs: list[np.ndarray]
    ) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Version, seconds from the file to the first result (imports left out), that result, and seconds by stage."""
        load = loader()
        self._model = path, threads
        start = time.perf_counter()
        with compiling() as compilation:
            self._run, version = load(path, threads, **options)
            with stage("first call"):
                outputs = self._run(inputs)
        self._inputs = inputs
        return version, time.perf_counter() - start, [np.array(o) for o in outputs], compilation.seconds

    def time(self, warm_up: int, count: int, company: str = "") -> list[float]:
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
            other = ENGINES[name].loader()(*self._model)[0]
            self._companions[name] = lambda: other(self._inputs)
        return self._companions[name]

    def serve(self, clients: int, seconds: float, blocking: bool = False) -> tuple[list[float], float]:
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


if __name__ == "__main__":
    answer(_Commands())
