"""The process of one engine: loads a model, runs it, times it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any

import numpy as np

from ...core.compilation import compiling, stage
from .engines import Load, Run


class Commands:
    def __init__(self) -> None:
        self._run: Run
        self._inputs: list[np.ndarray] = []

    def load(
        self, loader: Callable[[], Load], path: str, threads: int, options: dict[str, Any], inputs: list[np.ndarray]
    ) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Version, seconds from the file to the first result (imports left out), that result, and seconds by stage."""
        load = loader()
        start = time.perf_counter()
        with compiling() as compilation:
            self._run, version = load(path, threads, **options)
            with stage("first call"):
                outputs = self._run(inputs)
        self._inputs = inputs
        return version, time.perf_counter() - start, [np.array(o) for o in outputs], compilation.seconds

    def time(self, warm_up: int, count: int) -> list[float]:
        return [sample for _ in range(warm_up + count) for sample in self._timed(0.0)][warm_up:]

    def _timed(self, end: float) -> list[float]:
        """One run, and more until the clock is there."""
        samples: list[float] = []
        while not samples or time.perf_counter() < end:
            start = time.perf_counter()
            self._run(self._inputs)
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    def call_at_once(self, clients: int, seconds: float) -> tuple[list[float], float]:
        """Calls of so many threads, each behind a first one that no time counts."""
        ready = Barrier(clients)

        def call() -> tuple[float, list[float]]:
            self._timed(0.0)
            ready.wait()
            started = time.perf_counter()
            return started, self._timed(started + seconds)

        with ThreadPoolExecutor(clients) as pool:
            calls = [pool.submit(call) for _ in range(clients)]
        ended, done = time.perf_counter(), [each.result() for each in calls]
        return [sample for _, samples in done for sample in samples], ended - min(started for started, _ in done)

    def serve(self, clients: int, seconds: float) -> tuple[list[float], float]:
        submit = getattr(self._run, "submit", None)
        if submit is None:
            return self.call_at_once(clients, seconds)
        started = time.perf_counter()
        latencies: list[float] = []
        waiting: dict[Future[Any], float] = {}
        while True:
            while len(waiting) < clients:
                begun = time.perf_counter()
                if begun >= started + seconds and len(latencies) + len(waiting) >= clients:
                    break
                waiting[submit(self._inputs)] = begun
            if not waiting:
                return latencies, time.perf_counter() - started
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                latencies.append((time.perf_counter() - waiting.pop(future)) * 1e3)
                future.result()
