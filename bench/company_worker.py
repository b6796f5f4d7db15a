"""The process of one engine, whose calls have company."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_byoc_dnnl.testing.bench.engines import ENGINES, Load
from tvm_byoc_dnnl.testing.bench.worker import Commands

_LEAST = 20  # runs, of which a 95th percentile can be told


class CommandsInCompany(Commands):
    def load(
        self, loader: Callable[[], Load], path: str, threads: int, options: dict[str, Any], inputs: list[np.ndarray]
    ) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        self._model = path, threads
        self._companions: dict[str, Callable[[], Any]] = {"": lambda: None}
        return super().load(loader, path, threads, options, inputs)

    def time_beside(self, company: str, warm_up: int, count: int, seconds: float) -> list[float]:
        """Milliseconds of each run; before each comes what the ``company`` computes. Behind so many ``seconds`` there
        are no more runs than a 95th percentile needs."""
        before = self._companion(company)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < warm_up + min(count, _LEAST) or (
            len(samples) < warm_up + count and time.perf_counter() < end
        ):
            before()
            samples += self.time(0, 1)
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
