"""The number of threads of single calls, whatever the rest of the process uses."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _native


class Company(NamedTuple):
    """How a model's regions were called beside whatever else used the cores, since the model was loaded.

    Attributes
    ----------
    late : int
        Calls that were slower than fewer threads would have been, because a thread had to share its core.
    narrowed : int
        Calls on fewer threads than they may use: after late ones, while other calls of this process ran, or because the
        region is so small that fewer are faster.
    """

    late: int = 0
    narrowed: int = 0

    @classmethod
    def of(cls, module: Any) -> Company:
        """The sum over the regions of a compiled model."""
        counters = [json.loads(m["plans"]()) for m in _native.regions([module]).values()]
        return cls(*(sum(each[name] for each in counters) for name in cls._fields))


def limited(function: Callable[..., Any], threads: int | None) -> Callable[..., Any]:
    """The function; while it runs, the parallel loops that its thread starts use so many threads."""
    if threads is None:
        return function
    return functools.partial(_native.function("tvm_byoc_dnnl.CallWithThreads"), threads, function)
