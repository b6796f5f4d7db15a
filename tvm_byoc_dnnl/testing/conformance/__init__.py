"""The conformance kit: does a backend take what it says, compute it right, and give a reason for the rest?

operators ──calls──────> one call each: dtypes, ranks, shapes, axes, attributes ──┐
patterns  ──examples───> the graph registered with it, its dtypes, its leaks ─────┼─judge─> Report
          ──structures─> graphs around what is accepted: chains, forks, aliases ──┘
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...comparison import TOLERANCES
from ...namespace import Namespace, Pattern
from ...namespaces import compilers, namespace
from .calls import call_cases
from .case import Case
from .drawing import drawn, spread
from .judge import TAKEN, Result, judge
from .patterns import pattern_cases
from .report import Report
from .structures import structural_cases

__all__ = ["TOLERANCES", "Report", "Result", "run_conformance"]

#: functions compiled at once: many save the cost of a build, few save time where one of them fails
_BATCH = 64
#: how many operators the larger graphs are built around
_STRUCTURED = 24
#: the second backend of a pair: the first of these that is not the tested one
_PARTNERS = ("ccompiler", "dnnl")


def run_conformance(
    compiler: str,
    *,
    only: Sequence[str] = (),
    share: float = 1.0,
    seed: int = 0,
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
    share : float
        How much of the cases to draw, for a quick look; the first case of each operator and pattern is always there.
    seed : int
        What they are drawn by.
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
        If ``compiler`` is not registered, or ``share`` is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected more than 0 and at most 1")
    start, draw = time.monotonic(), random.Random(seed)
    ns, say = namespace(compiler), progress or (lambda text: None)
    allowed = {**TOLERANCES, **(tolerances or {})}
    ops = [op for op in ns.ops() if _is_wanted(op, only)]
    patterns = [p for p in ns.patterns.values() if _is_wanted(f"{compiler}.{p.name}", only)]
    cases = [*(c for op in ops for c in call_cases(op)), *(c for p in patterns for c in pattern_cases(compiler, p))]
    notes = _without_cases(compiler, ops, patterns, {c.subject for c in cases})

    cases = drawn(cases, share, draw)
    results = list(_judged(ns, cases, [compiler], allowed, say))
    accepted = _accepted(cases, results)
    bases = spread([c for c in accepted if not c.must_match], math.ceil(_STRUCTURED * share))
    bases += [c for c in accepted if c.must_match]
    structures = drawn([s for base in bases for s in structural_cases(ns, base)], share, draw)
    results += _judged(ns, structures, [compiler], allowed, say)
    partner = next(p for p in _PARTNERS if p != compiler)
    if partner in compilers():
        for order in ([compiler, partner], [partner, compiler]):
            shared = spread(structures, math.ceil(_BATCH * share))
            paired = [c.renamed(f"{c.what}, shared by {' and '.join(order)}") for c in shared]
            results += _judged(ns, paired, order, allowed, say)
    return Report(compiler, results, notes, time.monotonic() - start)


def _without_cases(compiler: str, ops: Sequence[str], patterns: Sequence[Pattern], asked: set[str]) -> list[str]:
    unasked = [f"{compiler}.{pattern.name}" for pattern in patterns if pattern.example is None]
    notes = [f"{name} was registered without an example, so it is not tested" for name in unasked]
    return notes + [f"{op}: the kit has no example call" for op in ops if op not in asked]


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, o) or fnmatchcase(name.removeprefix("relax."), o) for o in only)


def _judged(
    ns: Namespace, cases: Sequence[Case], order: Sequence[str], tolerances: Mapping[str, float], say: Any
) -> list[Result]:
    # Cases that TVM often cannot compile are kept together: after each failure, the rest of its batch is built again.
    queue = sorted(cases, key=lambda case: any(a.dtype == "bool" for a in case.arrays))
    found: dict[Case, Result] = {}
    for first in range(0, len(queue), _BATCH):
        batch = queue[first : first + _BATCH]
        say(f"{', '.join(order)}: cases {first + 1} to {first + len(batch)} of {len(queue)}, {batch[0].subject} …")
        found.update(zip(batch, judge(ns, batch, order, tolerances), strict=True))
    return [found[case] for case in cases]


def _accepted(cases: Sequence[Case], results: Sequence[Result]) -> list[Case]:
    """The first accepted call of each operator, and the example of each pattern."""
    first: dict[str, Case] = {}
    for case, result in zip(cases, results):
        if result.status == TAKEN and case.by is None and not case.constants and not case.symbolic:
            first.setdefault(case.subject, case)
    return list(first.values())
