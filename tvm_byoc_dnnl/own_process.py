"""Work in a process of its own, which has all that this one has: a crash or an exit there ends nothing here."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from .errors import ByocError, VendorError

__all__ = ["apart", "death", "own_process"]

#: passes on ``(what, value)`` to the process that waits
Tell = Callable[[str, Any], None]


def apart(work: Callable[[], Any], what: str) -> Any:
    """The value of ``work()``, done in a process of its own.

    Parameters
    ----------
    work : callable
        Its value, or its exception, is pickled.
    what : str
        Whose it is, for messages.

    Raises
    ------
    VendorError
        If the process ends before it is done.
    BaseException
        What the work raises.
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

    The last message is ``("done", value)`` or ``("error", exception)``. The process is ended with the context, and the
    compilers that it started are too.
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
