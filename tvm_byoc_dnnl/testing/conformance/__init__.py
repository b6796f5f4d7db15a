"""The conformance kit: does a backend take what it says, compute it right, and give a reason for the rest?

operators ──calls──────> one call each: dtypes, ranks, shapes, axes, attributes ─┐
          ──structures─> graphs around one accepted call: leaks, forks, aliases ─┼─judge─> Report
patterns  ──examples───> the graph that the vendor registered with it           ─┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..._compat import dtype_of, static_shape
from ...registry import Namespace, Pattern, compilers, namespace
from ..op_calls import floats
from .calls import call_cases
from .case import Case, lifted
from .judge import TAKEN, TOLERANCES, Result, judge
from .report import Report
from .structures import structural_cases

__all__ = ["TOLERANCES", "Report", "Result", "run_conformance"]

#: functions compiled at once: many save the cost of a build, few save time where one of them fails
_BATCH = 64
#: how many operators the larger graphs are built around
_STRUCTURED = 24
#: whom to pair a backend with, the first that is not itself
_PARTNERS = ("ccompiler", "dnnl")


def run_conformance(
    compiler: str,
    *,
    only: Sequence[str] = (),
    tolerances: Mapping[str, float] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Ask a backend everything that its registered operators and patterns suggest.

    Each accepted call must be in a region, compile, and give what TVM gives; each rejected one must have a reason, and
    its function still compile and be right.

    Parameters
    ----------
    compiler : str
        Namespace.
    only : sequence of str
        Operators and patterns to ask about, ``*`` and ``?`` as in a shell; all by default.
    tolerances : mapping of str to float, optional
        Dtype → largest error, relative to the largest value of a result, in place of `TOLERANCES`.
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If nobody registered ``compiler``.
    """
    start = time.monotonic()
    ns, say = namespace(compiler), progress or (lambda text: None)
    allowed = {**TOLERANCES, **(tolerances or {})}
    ops = [op for op in ns.ops() if _is_wanted(op, only)]
    notes, patterns = [], []
    for pattern in ns.patterns.values():
        name = f"{compiler}.{pattern.name}"
        if _is_wanted(name, only):
            case = _pattern_case(name, pattern)
            notes += [f"{name} was registered without an example, so it is not tested"] if case is None else []
            patterns += [] if case is None else [case]
    calls = [case for op in ops for case in call_cases(op)]
    results = list(_judged(ns, [*calls, *patterns], [compiler], allowed, say))
    notes += [f"{op}: the kit has no example call" for op in ops if op not in {c.subject for c in calls}]

    bases = _spread(_accepted(calls, results), _STRUCTURED)
    structures = [s for base in bases for s in structural_cases(ns, base)]
    results += _judged(ns, structures, [compiler], allowed, say)
    partner = next(p for p in _PARTNERS if p != compiler)
    if partner in compilers():
        for order in ([compiler, partner], [partner, compiler]):
            paired = [c.renamed(f"{c.what}, shared by {' and '.join(order)}") for c in _spread(structures, _BATCH)]
            results += _judged(ns, paired, order, allowed, say)
    return Report(compiler, results, notes, time.monotonic() - start)


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, o) or fnmatchcase(name.removeprefix("relax."), o) for o in only)


def _judged(
    ns: Namespace, cases: Sequence[Case], order: Sequence[str], tolerances: Mapping[str, float], say: Any
) -> Iterator[Result]:
    for first in range(0, len(cases), _BATCH):
        batch = cases[first : first + _BATCH]
        say(f"{', '.join(order)}: cases {first + 1} to {first + len(batch)} of {len(cases)}, {batch[0].subject} …")
        yield from judge(ns, batch, order, tolerances)


def _accepted(cases: Sequence[Case], results: Sequence[Result]) -> list[Case]:
    """The first accepted call of each operator."""
    first: dict[str, Case] = {}
    for case, result in zip(cases, results):
        if result.status == TAKEN and case.by is None and not case.constants and not case.symbolic:
            first.setdefault(case.subject, case)
    return list(first.values())


def _spread(cases: Sequence[Case], count: int) -> list[Case]:
    """``count`` of the cases, from all over; all, where there are fewer."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]


def _pattern_case(name: str, pattern: Pattern) -> Case | None:
    if pattern.example is None:
        return None
    module = pattern.example()
    arrays = tuple(_noise(p.ty) for p in module["main"].params)
    return Case(name, "its example", lifted(lambda *_: None), arrays, given=module)


def _noise(ty: Any) -> np.ndarray:
    shape, dtype = static_shape(ty), dtype_of(ty)
    if shape is None:
        raise ValueError(f"the example of a pattern has a parameter of type {ty}; expected tensors of static shapes")
    return floats(*shape, low=0.5, high=2).astype(dtype)
