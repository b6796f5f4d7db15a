"""The number of threads of single calls, whatever the rest of the process uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import _native
from .errors import InputError

__all__ = ["check_threads", "limited"]


def check_threads(threads: int | None) -> int | None:
    """The argument ``threads`` of a public function, if it is a positive number or ``None``.

    Raises
    ------
    InputError
        If it is something else.
    """
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise InputError(f"threads is {threads!r}; expected a number from 1 on, or None for OpenMP's own number")
    return threads


def limited(function: Callable[..., Any], threads: int | None) -> Callable[..., Any]:
    """The function; while it runs, the parallel loops that its thread starts use so many threads."""
    if threads is None:
        return function
    return functools.partial(_native.function("tvm_byoc_dnnl.CallWithThreads"), threads, function)
