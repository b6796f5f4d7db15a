"""The number of threads of single calls, whatever the rest of the process uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import _native
from .errors import InputError

__all__ = ["check_number", "limited"]


def check_number(name: str, value: int | None) -> int | None:
    """The argument ``threads`` or ``workers`` of a public function, if it is a positive number or ``None``.

    Raises
    ------
    InputError
        If it is something else.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{name} is {value!r}; expected a number from 1 on, or None for the usual one")
    return value


def limited(function: Callable[..., Any], threads: int | None) -> Callable[..., Any]:
    """The function; while it runs, the parallel loops that its thread starts use so many threads."""
    if threads is None:
        return function
    return functools.partial(_native.function("tvm_byoc_dnnl.CallWithThreads"), threads, function)
