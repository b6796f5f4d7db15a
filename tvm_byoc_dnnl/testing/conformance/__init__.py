"""The conformance kit: does a backend take what it says, compute it right, and give a reason for the rest?

operators ──calls──────> one call each: dtypes, ranks, shapes, axes, attributes ──┐
          ──links──────> some of them between conversions from and to 8-bit integers ──┤
patterns  ──examples───> the graph registered with it, its dtypes, its leaks ─────┼─judge─> Report
          ──structures─> graphs around what is accepted: chains, forks, aliases ──┘

A backend's code runs in a process of its own: one that crashes or hangs costs its case, and the others go on. The
process is forked, so that it has all registrations, and is used for all cases. It says what it begins and what it has
found. Where it ends early, or says nothing for too long, the next process gets what is known so far, and judges the
suspected cases apart from the others, until one case is left.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from ...core.errors import ByocError
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


@dataclass
class Journal:
    """What is known of the cases, by their numbers, and what is being done."""

    #: number of a case → its result
    results: dict[int, Result] = field(default_factory=dict)
    #: numbers of the cases that are judged by themselves, and not with their batch
    alone: set[int] = field(default_factory=set)
    #: subject whose cases cannot be made → why
    lost: dict[str, str] = field(default_factory=dict)
    #: passes on a message; nobody listens to it where the cases are judged in the same process
    tell: Callable[..., None] = lambda *message: None
    _making: str | None = None
    _judging: Sequence[tuple[int, str, str]] = ()
    _running: int | None = None

    def found(self, results: dict[int, Result]) -> None:
        """In the process of the backend: results of the cases that were judged together."""
        self.results.update(results)
        self.tell("found", results)

    def follow(self, what: str, value: Any) -> None:
        """In the process that waits for it."""
        self._making = value if what == "make" else None
        if what == "judge":
            self._judging = value
        elif what == "found":
            self.results.update(value)
            self._judging = ()
        self._running = value if what == "run" else None

    def patience(self, limit: float) -> float:
        return limit if self._running is not None else limit * (1 + len(self._judging) / _COMPILED_IN_TIME)

    def after(self, death: str) -> None:
        """A case that ended the process alone has failed, of several some are suspected."""
        if len(self._judging) == 1:
            ((number, subject, what),) = self._judging
            self.results[number] = Result(subject, what, FAILED, death)
        elif self._judging:
            suspected = [number for number, *_ in self._judging] if self._running is None else [self._running]
            self.alone.update(suspected)
        elif self._making is not None:
            self.lost[self._making] = death
        else:
            raise ByocError(f"the process of the conformance kit ended before a case, or between two: {death}")
        self._making, self._judging, self._running = None, (), None


def in_own_process(work: Callable[[Journal], Any], time_limit: float, say: Callable[[str], None]) -> Any:
    """``work`` does the same each time, but for what the journal knows; its process is started again when it ends."""
    journal = Journal()
    while True:
        with own_process(partial(_told, work, journal)) as (process, pipe):
            while True:
                try:
                    if not pipe.poll(journal.patience(time_limit)):
                        ended = f"hangs: nothing came for {journal.patience(time_limit):g} s, and it was ended"
                        break
                    what, value = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    ended = death(process.exitcode)
                    break
                if what == "done":
                    return value
                if what == "error":
                    raise value
                say(value) if what == "say" else journal.follow(what, value)
        journal.after(ended)


def _told(work: Callable[[Journal], Any], journal: Journal, tell: Callable[[str, Any], None]) -> Any:
    journal.tell = tell
    return work(journal)


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
    kit = _Kit(ns, only, share, seed, {**TOLERANCES, **as_tolerances(tolerances or {})})
    results, notes = in_own_process(kit.run, time_limit, say) if isolated else kit.run(Journal(tell=_talking(say)))
    return Report(compiler, results, notes, time.monotonic() - start, share, seed, ns.api)


def _talking(say: Callable[[str], None]) -> Callable[..., None]:
    return lambda what, value: say(value) if what == "say" else None


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, o) or fnmatchcase(name.removeprefix("relax."), o) for o in only)


class _Kit:
    """All questions to one backend, always the same and in the same order."""

    def __init__(
        self, ns: Namespace, only: Sequence[str], share: float, seed: int, tolerances: Mapping[str, float]
    ) -> None:
        self._ns, self._share, self._seed, self._tolerances = ns, share, seed, tolerances
        self._ops = [op for op in ns.ops() if _is_wanted(op, only)]
        self._patterns = [p for p in ns.patterns.values() if _is_wanted(f"{ns.name}.{p.name}", only)]

    def run(self, journal: Journal) -> tuple[list[Result], list[str]]:
        """The results of all cases, those that the journal knows among them, and notes."""
        name, draw, lost = self._ns.name, random.Random(self._seed), _Lost(journal)
        self._journal, self._asked = journal, 0
        cases = [c for op in self._ops for c in lost.unless(op, "its cases", partial(call_cases, op))]
        of_patterns: list[Case] = []
        for p in self._patterns:
            of_patterns += lost.unless(f"{name}.{p.name}", "its cases", partial(pattern_cases, name, p))
        if is_quantised(self._ns, of_patterns):
            cases += [c for op in self._ops for c in lost.unless(op, "quantised", partial(quantised_cases, op))]
        cases += of_patterns
        notes = self._notes({c.subject for c in cases} | {result.subject for result in lost.results})

        cases = drawn(cases, self._share, draw)
        results = self._judged(cases, [name])
        accepted = _accepted(cases, results)
        bases = spread([c for c in accepted if not c.must_match], math.ceil(_STRUCTURED * self._share))
        bases += [c for c in accepted if c.must_match]
        around = [lost.unless(b.subject, "structures around it", partial(structural_cases, self._ns, b)) for b in bases]
        structures = drawn([case for some in around for case in some], self._share, draw)
        results += self._judged(structures, [name])
        partner = next(p for p in _PARTNERS if p != name)
        if partner in compilers():
            for order in ([name, partner], [partner, name]):
                shared = spread(structures, math.ceil(_BATCH * self._share))
                paired = [replace(c, what=f"{c.what}, shared by {' and '.join(order)}") for c in shared]
                results += self._without_faults_of(partner, paired, self._judged(paired, order))
        return [*lost.results, *results], notes

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

    def _judged(self, cases: Sequence[Case], order: Sequence[str]) -> list[Result]:
        """The results of cases; each group of a batch is judged together."""
        # Cases that TVM often cannot compile are kept together: after each failure the rest of a batch is built again.
        queue = sorted(cases, key=lambda case: any(a.dtype == "bool" for a in case.arrays))
        found: dict[Case, Result] = {}
        journal = self._journal
        for first in range(0, len(queue), _BATCH):
            numbers = {case: self._asked + i for i, case in enumerate(queue[first : first + _BATCH])}
            self._asked += len(numbers)
            which = f"cases {first + 1} to {first + len(numbers)} of {len(queue)}, {queue[first].subject} …"
            journal.tell("say", f"{', '.join(order)}: {which}")
            unknown = {case: number for case, number in numbers.items() if number not in journal.results}
            together = [case for case, number in unknown.items() if number not in journal.alone]
            for group in [together, *([case] for case in unknown if case not in together)]:
                self._judge(group, [numbers[case] for case in group], order)
            found.update({case: journal.results[number] for case, number in numbers.items()})
        return [found[case] for case in cases]

    def _judge(self, cases: Sequence[Case], numbers: Sequence[int], order: Sequence[str]) -> None:
        if not cases:
            return
        asked = self._ns if self._ns.name in order else namespace(order[0])
        cases = in_layout(asked, cases)
        known = dict(zip(cases, numbers, strict=True))
        tell = self._journal.tell
        tell("judge", [(number, case.subject, case.what) for case, number in known.items()])
        begin = lambda case: tell("run", None if case is None else known[case])  # noqa: E731
        results = judge(asked, cases, order, self._tolerances, begin)
        self._journal.found(dict(zip(numbers, results, strict=True)))


class _Lost:
    """The cases of a subject, unless making them has ended the process before."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.results: list[Result] = []

    def unless(self, subject: str, what: str, make: Callable[[], list[Case]]) -> list[Case]:
        key = f"{subject}: {what}"
        if key in self._journal.lost:
            self.results.append(Result(subject, what, FAILED, self._journal.lost[key]))
            return []
        self._journal.tell("make", key)
        return make()


def _accepted(cases: Sequence[Case], results: Sequence[Result]) -> list[Case]:
    first: dict[str, Case] = {}
    for case, result in zip(cases, results):
        if result.status == TAKEN and case.by is None and not case.constants and not case.symbolic:
            first.setdefault(case.subject, case)
    return list(first.values())
