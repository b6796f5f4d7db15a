"""The choice of a compiler: of all compilers that would take a call, one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import InputError
from ..namespaces import HOST, compilers

__all__ = ["CANDIDATES_ATTR", "Choice", "Match", "candidates_of", "first_in_order", "placed_by"]

#: attribute of a composite function: the compilers that would take its calls, in order of priority
CANDIDATES_ATTR = "byoc_candidates"


@dataclass(frozen=True)
class Match:
    """Calls that may become one composite function.

    Attributes
    ----------
    composite : str
        The pattern, or the single operator, as ``<namespace>.<name>``.
    result : str
        Variable that holds the result of the last call.
    calls : mapping of str to relax.Call
        Variable that holds the result → call.
    candidates : sequence of str
        The compilers that would take all of them, in order of priority; the first has found the match.
    """

    composite: str
    result: str
    calls: Mapping[str, Any]
    candidates: Sequence[str]


#: ``choice(match) -> one of the candidates``, or another name for "none of these"
Choice = Callable[[Match], str]


def first_in_order(match: Match) -> str:
    """The candidate with the highest priority."""
    return match.candidates[0]


def placed_by(placement: Mapping[str, str]) -> Choice:
    """The choice that a user wrote down; calls that it does not name go to the first candidate.

    Parameters
    ----------
    placement : mapping of str to str
        Call → compiler, or ``"tvm"``. A call is named by the variable that holds its result, its operator
        (``"relax.nn.relu"``) or a pattern (``"vendor.pattern"``: all calls that it matches); ``*`` and ``?`` match as
        in a shell. An entry with the variable's own name decides, else the first that matches. Where the named
        compiler cannot take a call, TVM has it.

    Returns
    -------
    callable
        For one run of `AnnotateExternalCompiler`: it remembers what a pattern has matched.

    Raises
    ------
    InputError
        If a compiler is not registered.
    """
    for name, compiler in placement.items():
        if compiler != HOST and compiler not in compilers():
            raise InputError(
                f"placement[{name!r}] is {compiler!r}; expected {HOST!r} or a registered compiler: "
                f"{', '.join(compilers())}"
            )
    matched: dict[str, str] = {}  # variable -> compiler, by entries that name a pattern

    def wanted(composite: str, name: str, call: Any) -> str | None:
        if name in placement:
            return placement[name]
        names = (name, str(call.op.name), composite)
        by_entry = next((c for key, c in placement.items() if any(fnmatchcase(n, key) for n in names)), None)
        return by_entry or matched.get(name)

    def choose(match: Match) -> str:
        wishes = {name: wanted(match.composite, name, call) for name, call in match.calls.items()}
        matched.update({name: wish for name, wish in wishes.items() if wish is not None})
        compiler = match.candidates[0]
        against = [wish for wish in wishes.values() if wish not in (None, compiler)]
        return str(against[0]) if against else compiler

    return choose


def candidates_of(func: Any) -> list[str]:
    """The candidates that annotation has recorded for a composite function; none if another pass made the function."""
    return [str(name) for name in func.attrs[CANDIDATES_ATTR]] if func.attrs and CANDIDATES_ATTR in func.attrs else []
