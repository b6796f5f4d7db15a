"""The conformance kit: does a backend take what it says, compute it right, and give a reason for the rest?

operators ──calls──────> one call each: dtypes, ranks, shapes, axes, attributes ──┐
          ──links──────> some of them between conversions from and to 8-bit integers ──┤
patterns  ──examples───> the graph registered with it, its dtypes, its leaks ─────┼─judge─> Report
          ──structures─> graphs around what is accepted: chains, forks, aliases ──┘

A backend's code runs in a process of its own: one that crashes or hangs costs its case, and the others go on. The
process is forked, so that it has all registrations.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from ...core.own_process import death, own_process
from ...runtime.comparison import TOLERANCES, as_tolerances
from ...vendors import Namespace
from ...vendors.namespaces import compilers, namespace
from .calls import call_cases
from .judge import FAILED, SKIPPED, TAKEN, Case, Result, drawn, in_layout, judge, spread
from .patterns import is_quantised, pattern_cases, quantised_cases, structural_cases
from .report import Report

__all__ = ["TOLERANCES", "Report", "Result", "run_conformance"]

#: while so many cases are compiled together, they may take the time of one case more
_COMPILED_IN_TIME = 16


class Ended(str):
    """How an item has ended the process in which it was worked on."""


#: ``work(numbers, begin)``: an answer for each of some numbered items; ``begin`` is told the item that runs now, if any
Work = Callable[[Sequence[int], Callable[["int | None"], None]], Sequence[Any]]


def apart(
    batches: Sequence[Sequence[int]], work: Work, time_limit: float, say: Callable[[Sequence[int]], None]
) -> dict[int, Any]:
    """Number → its answer, or an `Ended`, by ``work`` in a process of its own, which is told batch after batch.

    Where the process ends early, or says nothing for too long, the item that ran then is worked on apart from the
    others, or else a half of its batch is, in a new process: until one item alone has ended it.
    """
    found: dict[int, Any] = {}
    ended, running = "", None
    while batches:
        with own_process(partial(_told, work, batches)) as (process, pipe):
            while batches and not ended:
                say(batches[0])
                answers, ended, running = _answer(process, pipe, len(batches[0]), time_limit)
                if not ended:
                    found.update(zip(batches[0], answers, strict=True))
                    batches = batches[1:]
        if ended and len(batches[0]) > 1:
            suspected = batches[0][: len(batches[0]) // 2] if running is None else [running]
            batches = [suspected, [n for n in batches[0] if n not in suspected], *batches[1:]]
        elif ended:
            found[batches[0][0]] = Ended(ended)
            batches = batches[1:]
        ended = ""
    return found


def _told(work: Work, batches: Sequence[Sequence[int]], tell: Callable[[str, Any], None]) -> None:
    for batch in batches:
        tell("found", work(batch, partial(tell, "run")))


def _answer(process: Any, pipe: Any, count: int, time_limit: float) -> tuple[Sequence[Any], str, int | None]:
    """The answers to a batch of so many items; else how the process ended, and the item that ran then."""
    running: int | None = None
    while True:
        patience = time_limit * (1 if running is not None else 1 + count / _COMPILED_IN_TIME)
        try:
            if not pipe.poll(patience):
                return (), f"hangs: nothing came for {patience:g} s, and it was ended", running
            what, value = pipe.recv()
        except (EOFError, OSError):
            process.join()
            return (), death(process.exitcode), running
        if what == "error":
            raise value
        if what == "found":
            return value, "", None
        running = value


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
    tolerances: Mapping[str, float | str] | None = None,
    progress: Callable[[str], None] | None = None,
    time_limit: float = 60.0,
    isolated: bool = True,
) -> Report:
    """Ask a backend everything that its registered operators and patterns suggest.

    Each accepted call must be in a region, compile, give what TVM gives, and leave its inputs as they were; each
    rejected one must have a reason, and its function still compile and be right.

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
        Dtype → largest error, relative to the largest value of a result, in place of `TOLERANCES`; of integers a number
        of steps: ``{"int8": "1 step"}``. Chains of calls may differ by what such errors of their inputs make.
    progress : callable, optional
        Told what is being done.
    time_limit : float
        Seconds that one case may take before it counts as a failure that hangs.
    isolated : bool
        Run the backend in a process of its own, so that a crash or a hang costs one case; without it a debugger works.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If ``compiler`` is not registered, or ``share`` is not in (0, 1].
    InputError
        If a tolerance is none.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected more than 0 and at most 1")
    start, say = time.monotonic(), progress or (lambda text: None)
    ns = namespace(compiler)
    allowed = {**TOLERANCES, **as_tolerances(tolerances or {})}
    kit = _Kit(ns, only, share, seed, allowed, say, time_limit if isolated else None)
    results, notes = kit.run()
    return Report(compiler, results, notes, time.monotonic() - start, share, seed, ns.api)


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, o) or fnmatchcase(name.removeprefix("relax."), o) for o in only)


class _Kit:
    """The questions to one backend; without a ``time_limit`` its code runs in this process."""

    def __init__(
        self,
        ns: Namespace,
        only: Sequence[str],
        share: float,
        seed: int,
        tolerances: Mapping[str, float],
        say: Callable[[str], None],
        time_limit: float | None,
    ) -> None:
        self._ns, self._share, self._seed, self._tolerances = ns, share, seed, tolerances
        self._say, self._time_limit = say, time_limit
        self._ops = [op for op in ns.ops() if _is_wanted(op, only)]
        self._patterns = [p for p in ns.patterns.values() if _is_wanted(f"{ns.name}.{p.name}", only)]

    def run(self) -> tuple[list[Result], list[str]]:
        """The results of all cases, and notes."""
        name, draw = self._ns.name, random.Random(self._seed)
        cases = [c for op in self._ops for c in call_cases(op)]
        examples = [(f"{name}.{p.name}", partial(pattern_cases, name, p)) for p in self._patterns]
        of_patterns, lost = self._made(examples, "its cases")
        if is_quantised(self._ns, of_patterns):
            cases += [c for op in self._ops for c in quantised_cases(op)]
        cases += of_patterns
        notes = self._notes({c.subject for c in cases} | {result.subject for result in lost})

        cases = drawn(cases, self._share, draw)
        results = self._judged(cases, [name])
        accepted = _accepted(cases, results)
        bases = spread([c for c in accepted if not c.must_match], math.ceil(_STRUCTURED * self._share))
        bases += [c for c in accepted if c.must_match]
        around = [(base.subject, partial(structural_cases, self._ns, base)) for base in bases]
        structures, lost_around = self._made(around, "structures around it")
        structures = drawn(structures, self._share, draw)
        results += self._judged(structures, [name])
        partner = next(p for p in _PARTNERS if p != name)
        if partner in compilers():
            for order in ([name, partner], [partner, name]):
                shared = spread(structures, math.ceil(_BATCH * self._share))
                paired = [replace(c, what=f"{c.what}, shared by {' and '.join(order)}") for c in shared]
                results += self._without_faults_of(partner, paired, self._judged(paired, order))
        return [*lost, *lost_around, *results], notes

    def _without_faults_of(self, partner: str, cases: Sequence[Case], results: list[Result]) -> list[Result]:
        """The results of shared cases; one that the partner fails alone is no fault of the tested backend."""
        failed = [case for case, result in zip(cases, results, strict=True) if result.status == FAILED]
        alone = dict(zip(failed, self._judged(failed, [partner]), strict=True))
        return [
            replace(result, status=SKIPPED, detail=f"{partner} alone: {alone[case].detail}")
            if case in alone and alone[case].status == FAILED
            else result
            for case, result in zip(cases, results, strict=True)
        ]

    def _notes(self, asked: set[str]) -> list[str]:
        name = self._ns.name
        unasked = [f"{name}.{pattern.name}" for pattern in self._patterns if pattern.example is None]
        return [
            *(f"{pattern} was registered without an example, so it is not tested" for pattern in unasked),
            *(f"{op}: the kit has no example call" for op in self._ops if op not in asked),
            *(f"{what} was added by {who}, and not by {self._ns.owner}" for what, who in self._ns.added.items()),
        ]

    def _made(
        self, makers: Sequence[tuple[str, Callable[[], list[Case]]]], what: str
    ) -> tuple[list[Case], list[Result]]:
        """The cases that code of the backend makes, by their subjects; and the failures of what would end this process.

        What is made in a process of its own is made once more here.
        """

        def tried(numbers: Sequence[int], begin: Callable[[int | None], None]) -> list[None]:
            for number in numbers:
                makers[number][1]()
            return [None] * len(numbers)

        ended = {} if self._time_limit is None else self._answers(len(makers), 1, tried, lambda numbers: None)
        lost = [Result(makers[n][0], what, FAILED, why) for n, why in ended.items() if why is not None]
        return [case for n, (_, make) in enumerate(makers) if ended.get(n) is None for case in make()], lost

    def _judged(self, cases: Sequence[Case], order: Sequence[str]) -> list[Result]:
        """The results of cases; those of a batch are judged together."""
        # Cases that TVM often cannot compile are kept together: after each failure the rest of a batch is built again.
        queue = sorted(cases, key=lambda case: any(a.dtype == "bool" for a in case.arrays))
        asked = self._ns if self._ns.name in order else namespace(order[0])

        def judged(numbers: Sequence[int], begin: Callable[[int | None], None]) -> list[Result]:
            known = dict(zip(in_layout(asked, [queue[n] for n in numbers]), numbers, strict=True))
            running = lambda case: begin(None if case is None else known[case])  # noqa: E731
            return judge(asked, list(known), order, self._tolerances, running)

        def said(numbers: Sequence[int]) -> None:
            which = f"cases {numbers[0] + 1} to {numbers[-1] + 1} of {len(queue)}, {queue[numbers[0]].subject} …"
            self._say(f"{', '.join(order)}: {which}")

        found = self._answers(len(queue), _BATCH, judged, said)
        results = {
            case: Result(case.subject, case.what, FAILED, found[n]) if isinstance(found[n], Ended) else found[n]
            for n, case in enumerate(queue)
        }
        return [results[case] for case in cases]

    def _answers(self, count: int, at_once: int, work: Work, say: Callable[[Sequence[int]], None]) -> dict[int, Any]:
        """Number → the answer of ``work``; so many items are worked on together."""
        batches = [range(first, min(first + at_once, count)) for first in range(0, count, at_once)]
        if self._time_limit is not None:
            return apart(batches, work, self._time_limit, say)
        found: dict[int, Any] = {}
        for batch in batches:
            say(batch)
            found.update(zip(batch, work(batch, lambda number: None), strict=True))
        return found


def _accepted(cases: Sequence[Case], results: Sequence[Result]) -> list[Case]:
    first: dict[str, Case] = {}
    for case, result in zip(cases, results):
        if result.status == TAKEN and case.by is None and not case.constants and not case.symbolic:
            first.setdefault(case.subject, case)
    return list(first.values())
