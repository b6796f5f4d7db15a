"""How libgomp's threads wait. Imports nothing of tvm, so that it can be used before tvm is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["few_spins", "spins_for_long"]

_SPINS = "GOMP_SPINCOUNT"
_FEW_SPINS = "10000"
_GOMP = re.compile(r"/libgomp\.so[^/\n]*$", re.M)

_loaded_here = False  # inside of few_spins
_spins_for_long = False


def spins_for_long() -> bool:
    """Whether the threads of OpenMP spin for milliseconds here, because libgomp was loaded before this package."""
    return _spins_for_long


@contextmanager
def few_spins() -> Iterator[None]:
    """While libgomp is loaded inside, by whomever, its threads are told to spin for some 100 µs before they sleep.

    By default they spin for milliseconds at the end of each parallel loop, also when another process has the core that
    the last thread of the team needs, and the call waits. libgomp reads the variable when it is
    loaded, and never again: so it need not stay set for the processes that this one starts, and it comes too late
    where libgomp was loaded before this package.
    """
    global _loaded_here, _spins_for_long
    if _SPINS in os.environ or "OMP_WAIT_POLICY" in os.environ:  # the user has decided, or a caller of this one
        yield
        return
    was_loaded = _is_loaded()
    _spins_for_long = was_loaded and not _loaded_here
    os.environ[_SPINS] = _FEW_SPINS
    try:
        yield
    finally:
        del os.environ[_SPINS]
        _loaded_here |= not was_loaded and _is_loaded()


def _is_loaded() -> bool:
    return bool(_GOMP.search(Path("/proc/self/maps").read_text()))
