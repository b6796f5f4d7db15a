"""The parent's handle of one engine's process."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np

from ...core.own_process import Worker
from .engines import Engine

_ROOT = Path(__file__).resolve().parents[3]


def installed(engine: Engine) -> bool:
    """Whether the module that the engine needs is there."""
    return importlib.util.find_spec(engine.requires) is not None


def _environment(engine: Engine, threads: int) -> dict[str, str]:
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # Modules that an engine imports late are read as bytecode, as where pip has installed them.
    ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | dict.fromkeys(counts, str(threads)) | ours | dict(engine.env)


class EngineProcess(Worker):
    """One engine in a process of its own: thread pools that spin would slow each other down in one.

    Parameters
    ----------
    engine : Engine
        What to run.
    threads : int
        Threads that the engine may use.
    timeout : float
        Seconds to wait for one answer.
    """

    def __init__(self, engine: Engine, threads: int, timeout: float = 900.0) -> None:
        self.engine = engine
        self._threads = threads
        super().__init__(f"{__package__}.worker", timeout, _environment(engine, threads))

    def load(self, path: str, inputs: list[np.ndarray]) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Load a model and run it once: version, seconds until the first result, that result, seconds by stage."""
        return self.ask("load", self.engine.module, path, self._threads, dict(self.engine.options), inputs)

    def time(self, warm_up: int, count: int, company: str = "") -> list[float]:
        """Milliseconds of each of ``count`` runs after ``warm_up`` untimed ones.

        Before each run the process computes a product of NumPy (``company="numpy"``), or runs the model in the engine
        of that name.
        """
        return self.ask("time", warm_up, count, company)

    def serve(self, clients: int, seconds: float, blocking: bool = False) -> tuple[list[float], float]:
        """Milliseconds of each request of so many clients, and the seconds in which all were answered.

        ``blocking`` clients are threads that call the engine, and do not submit a request.
        """
        return self.ask("serve", clients, seconds, blocking)
