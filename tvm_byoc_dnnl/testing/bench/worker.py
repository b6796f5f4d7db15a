"""The process of one engine: loads a model, runs it, times it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any

import numpy as np

from ...core.compilation import compiling, stage
from .engines import ENGINES, Load, Run

_LEAST = 20  # runs, of which a 95th percentile can be told


class Commands:
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

    def time(self, warm_up: int, count: int, company: str, seconds: float) -> list[float]:
        before = self._companion(company)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < warm_up + min(count, _LEAST) or (
            len(samples) < warm_up + count and time.perf_counter() < end
        ):
            before()
            samples += self._timed(0.0)
        return samples[warm_up:]

    def _timed(self, end: float) -> list[float]:
        """One run, and more until the clock is there."""
        samples: list[float] = []
        while not samples or time.perf_counter() < end:
            start = time.perf_counter()
            self._run(self._inputs)
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    def _companion(self, name: str) -> Callable[[], Any]:
        """A matrix product of NumPy, or the same model in another engine."""
        if name == "numpy":
            matrix = np.random.default_rng(0).standard_normal((512, 512), dtype="float32")
            return lambda: matrix @ matrix
        if name not in self._companions:
            other = ENGINES[name].loader()(*self._model)[0]
            self._companions[name] = lambda: other(self._inputs)
        return self._companions[name]

    def _call_at_once(self, clients: int, seconds: float) -> tuple[list[float], float]:
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

    def serve(self, clients: int, seconds: float, blocking: bool) -> tuple[list[float], float]:
        submit = getattr(self._run, "submit", None)
        if blocking or submit is None:
            return self._call_at_once(clients, seconds)
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
