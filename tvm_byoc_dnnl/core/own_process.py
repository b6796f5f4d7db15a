"""Work in a process of its own: a crash or an exit there ends nothing here.

`apart` and `own_process` fork one for one piece of work: it has all that this one has. A `Worker` is a fresh one, with
threads and libraries of its own, that answers questions (`answer`) until it is closed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from .errors import ByocError, VendorError, first_line

#: passes on ``(what, value)`` to the process that waits
Tell = Callable[[str, Any], None]

_Worker = TypeVar("_Worker", bound="Worker")
_FAREWELL_S = 10.0  # that a worker has to end by itself


def apart(work: Callable[[], Any], what: str) -> Any:
    """The value of ``work()``, done and pickled in a process of its own; its exceptions are raised here.

    If the process ends before, `VendorError` says so of ``what``.
    """
    with own_process(lambda tell: work()) as (process, pipe):
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            process.join()
            raise VendorError(f"{what} {death(process.exitcode)}") from None
    if kind == "error":
        raise value
    return value


def death(status: int | None) -> str:
    """How a process ended, as the end of a sentence."""
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"crashes: the process was ended by {signal.Signals(-status).name}"
    return f"crashes: the process ended with status {status}"


@contextlib.contextmanager
def own_process(work: Callable[[Tell], Any]) -> Iterator[tuple[Any, Connection]]:
    """A forked process that does the work, and the end of the pipe at which its messages arrive.

    The last message is ``("done", value)`` or ``("error", exception)``. The context ends the process and its children.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(work, sending))
    with warnings.catch_warnings():  # a team of OpenMP ends before a fork, and starts again behind it
        warnings.filterwarnings("ignore", "This process.* is multi-threaded", DeprecationWarning)
        process.start()
    sending.close()
    assert process.pid is not None
    with contextlib.suppress(OSError):
        os.setpgid(process.pid, process.pid)  # here and there: whoever comes first
    try:
        yield process, receiving
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        receiving.close()


def _serve(work: Callable[[Tell], Any], pipe: Connection) -> None:
    """The process: every message is sent at once, so that the last one before a crash arrives."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    try:
        value = ("done", work(lambda what, value: pipe.send((what, value))))
    except BaseException as error:
        value = ("error", error)
    try:
        pipe.send(value)
    except Exception as error:  # what cannot be pickled
        own = value[1] if value[0] == "error" else error
        pipe.send(("error", ByocError(f"{type(own).__name__}: {own}")))


class WorkerError(ByocError):
    """A worker could not do what it was asked for."""


class Ended(WorkerError):
    """A worker ended with a ``status``; ``None`` where it gave no answer in time, and was ended."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Worker:
    """A fresh process of Python that answers by the methods of a ``kind`` of objects, within ``patience_s`` each."""

    def __init__(
        self, kind: type, patience_s: float, env: Mapping[str, str] | None = None, *, quiet: bool = False
    ) -> None:
        self.patience_s = patience_s
        self._pipe, child = multiprocessing.Pipe()
        code = f"from {kind.__module__} import {kind.__name__} as kind; from {__name__} import answer; answer(kind())"
        with child:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(child.fileno())],
                pass_fds=[child.fileno()],
                env=env,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if quiet else None,
                start_new_session=True,  # Ctrl-C is the parent's: the worker ends when the pipe closes
            )

    def ask(self, question: str, *arguments: Any) -> Any:
        """The value of a method of what it answers by; raises `Ended`, or `WorkerError` for an error of the method."""
        try:
            self._pipe.send((question, arguments))
            if not self._pipe.poll(self.patience_s):
                self.process.kill()
                raise Ended(f"no answer to `{question}` within {self.patience_s:.0f} s")
            error, value = self._pipe.recv()
        except (EOFError, OSError) as broken:
            status = self.process.wait()
            raise Ended(f"process ended with status {status} in `{question}`", status) from broken
        if error:
            raise WorkerError(error)
        return value

    def __enter__(self: _Worker) -> _Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._pipe.close()
        if kind is not None:
            self.process.kill()
        try:
            self.process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answer(commands: Any) -> None:
    """In a worker: answer questions by the methods of ``commands``, until the pipe closes."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the parent's is for results, and libraries print
    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            question, arguments = pipe.recv()
            try:
                pipe.send(("", getattr(commands, question)(*arguments)))
            except Exception as error:
                pipe.send((f"{type(error).__name__}: {first_line(error)}", None))
