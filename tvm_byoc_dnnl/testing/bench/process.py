"""The parent's handle of one engine's process."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ...errors import ByocError
from .engines import Engine

__all__ = ["EngineError", "EngineProcess", "installed"]

_ROOT = Path(__file__).resolve().parents[3]


class EngineError(ByocError):
    """An engine could not load or run a model."""


def installed(engine: Engine) -> bool:
    """Whether the module that the engine needs is there."""
    return importlib.util.find_spec(engine.requires) is not None


def _environment(engine: Engine, threads: int) -> dict[str, str]:
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # Modules that an engine imports late are read as bytecode, as where pip has installed them.
    ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | dict.fromkeys(counts, str(threads)) | ours | dict(engine.env)


class EngineProcess:
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
        self._timeout = timeout
        self._pipe, child = multiprocessing.Pipe()
        with child:
            command = [sys.executable, "-m", f"{__package__}.worker", str(child.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[child.fileno()],
                env=_environment(engine, threads),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the parent's: the worker ends when the pipe closes
            )

    def _ask(self, command: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((command, arguments))
            if not self._pipe.poll(self._timeout):
                self._process.kill()
                raise EngineError(f"no answer to `{command}` within {self._timeout:.0f} s")
            status, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise EngineError(f"process ended with status {self._process.wait()} in `{command}`") from error
        if status != "ok":
            raise EngineError(value)
        return value

    def load(self, path: str, inputs: list[np.ndarray]) -> tuple[str, float, list[np.ndarray], dict[str, float]]:
        """Load a model and run it once: version, seconds until the first result, that result, seconds by stage."""
        return self._ask("load", self.engine.module, path, self._threads, dict(self.engine.options), inputs)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def time(self, warm_up: int, count: int, company: str = "") -> list[float]:
        """Milliseconds of each of ``count`` runs after ``warm_up`` untimed ones.

        Before each run the process computes a product of NumPy (``company="numpy"``), or runs the model in the engine
        of that name.
        """
        return self._ask("time", warm_up, count, company)

    def serve(self, clients: int, seconds: float, blocking: bool = False) -> tuple[list[float], float]:
        """Milliseconds of each request of so many clients, and the seconds in which all were answered.

        ``blocking`` clients are threads that call the engine, and do not submit a request.
        """
        return self._ask("serve", clients, seconds, blocking)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()
