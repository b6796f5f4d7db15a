"""The choice of a compiler: of all compilers that would take a call, one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CANDIDATES_ATTR", "Choice", "candidates_of", "first_in_order"]

#: attribute of a composite function: the compilers that would take its calls, in order of priority
CANDIDATES_ATTR = "byoc_candidates"

#: ``choice(calls, candidates) -> one of the candidates``, for calls that may become one composite function
Choice = Callable[[Sequence[Any], Sequence[str]], str]


def first_in_order(calls: Sequence[Any], candidates: Sequence[str]) -> str:
    """The candidate with the highest priority."""
    return candidates[0]


def candidates_of(func: Any) -> list[str]:
    """The candidates that annotation has recorded for a composite function; none if another pass made the function."""
    return [str(name) for name in func.attrs[CANDIDATES_ATTR]] if func.attrs and CANDIDATES_ATTR in func.attrs else []
