"""The times of the stages of a build, for callers that collect them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["collect_stages", "stage"]

_SECONDS: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


@contextmanager
def collect_stages() -> Iterator[dict[str, float]]:
    """Stage → seconds of all that is built inside, in the order of the stages."""
    seconds: dict[str, float] = {}
    token = _SECONDS.set(seconds)
    try:
        yield seconds
    finally:
        _SECONDS.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time of a block as that of stage ``name``, if anybody collects it."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = _SECONDS.get()
        if seconds is not None:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
