"""The search: from the best simple placement, by moves of groups of calls, as long as the sum of the costs falls.

    priority, each compiler first, dynamic programming over the chain ──> the cheapest
                                          │
        ┌─────────────────────────────────┴──── the dearest part first ────────────────────────────────┐
        │ 1. all calls of one kind (acme.relu) in the whole model to another compiler, or to TVM        │
        │ 2. a part, and all that are equal to it, to another compiler: enlarges the regions beside it  │
        │ 3. the calls of one kind in such a part to another compiler: splits it                        │
        └──────── a move that lowers the cost by more than the noise is kept, and all is tried again ───┘

The cost of a placement is the sum of its workloads' costs. A workload takes its arguments and gives its results in
plain layout, so its time has the changes of layout at its borders in it. The search is greedy: it can miss a gain that
only two moves together bring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..vendors.namespaces import HOST
from .chain import by_dynamic_programming
from .costs import Costs
from .plans import Part, Plan, Planner, orders

_GAIN = 0.02  # a smaller one is within the noise of most machines
_CHAIN_SHARE = 0.6  # of the time that is left


@dataclass(frozen=True)
class Found:
    """The result of a search: who gets each call, who would by default, and the sums of the costs in seconds.

    ``others`` are all that differ from the default one and whose whole cost is known, the cheapest first.
    """

    placement: Mapping[str, str]
    default: Mapping[str, str]
    seconds: float | None
    default_seconds: float | None
    tried: int
    others: Sequence[Mapping[str, str]] = ()


class _Search:
    def __init__(self, planner: Planner, costs: Costs, deadline: float, tell: Callable[[str], None]) -> None:
        self._planner = planner
        self._costs = costs
        self._deadline = deadline
        self._tell = tell
        self._seen: set[frozenset[tuple[str, str]]] = set()
        self.tried = 0

    def cost(self, placement: Mapping[str, str], limit: float = float("inf")) -> tuple[Plan, float | None]:
        """The plan and its cost; ``None`` where a cost is unknown, or as soon as it is above the limit."""
        self.tried += 1
        plan = self._planner.plan(placement)
        self._seen.add(frozenset(plan.owners.items()))
        total = 0.0
        for part in plan.parts:
            seconds = self._costs.of(part.workload, limit - total)
            if seconds is None:
                return plan, None
            total += seconds
            if total > limit:
                return plan, None
        return plan, total

    def run(self, default: Mapping[str, str]) -> Found:
        plan, best = self.cost(default)
        if best is None:  # nothing to compare with
            return Found(default, default, None, None, self.tried)
        complete = [(best, plan)]  # placements whose whole cost is known
        for start in self._starts():
            if self._late():
                break
            other, seconds = self.cost(start)
            if seconds is not None:
                complete.append((seconds, other))
        best, plan = min(complete, key=lambda found: found[0])
        improved = True
        while improved and not self._late():
            improved = False
            for move in self._moves(plan):
                target = {**plan.owners, **move}
                if self._late() or frozenset(target.items()) in self._seen:
                    continue
                self._seen.add(frozenset(target.items()))
                other, seconds = self.cost(target, best * (1 - _GAIN))
                if seconds is not None:
                    plan, best, improved = other, seconds, True
                    complete.append((seconds, other))
                    self._tell(f"{1e3 * seconds:.3f} ms after {self.tried} placements")
                    break
        others: list[Mapping[str, str]] = []
        for _, other in sorted(complete, key=lambda found: found[0]):
            if other.owners not in (default, *others):
                others.append(other.owners)
        return Found(plan.owners, default, best, complete[0][0], self.tried, others)

    def _late(self) -> bool:
        return time.perf_counter() > self._deadline

    def _starts(self) -> Iterator[dict[str, str]]:
        """Each compiler before all others, and left out; the best way through a chain."""
        for order in orders(self._planner.compilers):
            yield self._planner.in_order(order)
        now = time.perf_counter()
        best = by_dynamic_programming(self._planner, self._costs, now + _CHAIN_SHARE * (self._deadline - now))
        if best is not None:
            yield best

    def _moves(self, plan: Plan) -> Iterator[dict[str, str]]:
        """Changes of a plan, the likeliest gain first."""
        parts = sorted(_equal_parts(plan), key=lambda p: -len(p) * (self._costs.of(p[0].workload) or 0.0))
        for equal in parts:
            calls = frozenset().union(*(p.calls for p in equal))
            for kind in self._kinds(calls):
                yield from self._given(kind)
        for equal in parts:
            calls = frozenset().union(*(p.calls for p in equal))
            for compiler in (*self._planner.compilers, HOST):
                if compiler != equal[0].workload.compiler:
                    yield self._as_far_as(compiler, calls)
        for equal in parts:
            calls = frozenset().union(*(p.calls for p in equal))
            for kind in self._kinds(calls):
                for move in self._given(kind):
                    yield {call: compiler for call, compiler in move.items() if call in calls}

    def _kinds(self, calls: frozenset[str]) -> list[frozenset[str]]:
        """All calls of the model that some compiler takes as one kind, of which some are among ``calls``."""
        kinds: dict[tuple[str, str], frozenset[str]] = {}
        for group in self._planner.groups:
            key = (group.compiler, group.kind)
            kinds[key] = kinds.get(key, frozenset()) | group.calls
        return list(dict.fromkeys(kind for kind in kinds.values() if kind & calls))

    def _given(self, calls: frozenset[str]) -> Iterator[dict[str, str]]:
        for compiler in (*self._planner.compilers, HOST):
            yield self._as_far_as(compiler, calls)

    def _as_far_as(self, compiler: str, calls: frozenset[str]) -> dict[str, str]:
        """These calls with a compiler, those of them that it takes."""
        able = calls if compiler == HOST else calls & self._planner.taken[compiler]
        return dict.fromkeys(sorted(able), compiler)


def search(planner: Planner, costs: Costs, budget_s: float, tell: Callable[[str], None] = lambda line: None) -> Found:
    """The cheapest placement that is found in the time.

    Parameters
    ----------
    planner : Planner
        Of the model.
    costs : Costs
        Of its workloads.
    budget_s : float
        Seconds after which no further placement is tried.
    tell : callable
        Called with a line about each improvement.
    """
    return _Search(planner, costs, time.perf_counter() + budget_s, tell).run(planner.default())


def _equal_parts(plan: Plan) -> list[list[Part]]:
    found: dict[tuple[str, str], list[Part]] = {}
    for part in plan.parts:
        found.setdefault((part.workload.compiler, part.workload.key), []).append(part)
    return list(found.values())
