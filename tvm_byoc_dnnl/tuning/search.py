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

A model as a chain of blocks, and the cheapest choice for each block by dynamic programming.

A cut is a place where one large tensor alone leads from the calls before it to those behind it. What lies between two
cuts may be parallel: the branches of a residual block or of an inception module are one block.

    block 0 ──t──> block 1 ──t──> block 2            option: an order of the compilers for the calls of a block
      │ a           │ a             │ a              cost(i, a): the block alone
      └ b ──────────┴ b ────────────┴ b              seam(i, a, b): what two neighbours cost together, less what each
                                                     costs alone; 0 where the compilers at the cut differ
    best(i, b) = min over a of best(i-1, a) + seam(i-1, a, b) + cost(i, b)

This is exact where the cost of a region is that of its blocks and of its seams; every one of these is measured, with
the changes of layout at its borders.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ..graph.cost import is_cheap, type_bytes
from ..ir.functions import Block, dataflow_blocks
from ..ir.relax_utils import is_op_call
from ..vendors.namespaces import HOST
from .database import content_of, host_workload
from .plans import Costs, Part, Plan, Planner, orders

_FEW_BLOCKS = 24  # a model with more has cuts only in front of calls that compute much
_SMALL = 16  # a tensor that is so many times smaller than another at a cut is no reason against the cut
_HOPELESS = 3.0  # an option that costs so many times the best one of its block, or of the model, is left out

#: call -> compiler, for the calls of one block
Option = Mapping[str, str]


def by_dynamic_programming(planner: Planner, costs: Costs, deadline: float) -> dict[str, str] | None:
    """None if the model is no chain, a cost is unknown, or the time is over."""
    blocks = list(blocks_of(planner))
    if len(blocks) < 2:
        return None
    return _Chain(planner, costs, deadline, blocks).best()


class _OutOfTime(Exception):
    pass


class _Chain:
    def __init__(self, planner: Planner, costs: Costs, deadline: float, blocks: Sequence[Sequence[Any]]) -> None:
        self._planner, self._costs, self._deadline = planner, costs, deadline
        self._blocks = blocks
        (_, block), *_rest = dataflow_blocks(planner.mod)
        self._block = Block(block)
        self._known: dict[tuple[str, tuple[str, ...]], float | None] = {}

    def best(self) -> dict[str, str] | None:
        try:
            options = [self._options(bindings) for bindings in self._blocks]
            if not all(options):
                return None
            ways = {i: (cost, [option]) for i, (option, cost) in enumerate(options[0])}
            for k in range(1, len(options)):
                ways = {
                    j: min(
                        (
                            (before + self._seam(k, options[k - 1][i], (option, cost)) + cost, [*way, option])
                            for i, (before, way) in ways.items()
                        ),
                        key=lambda found: found[0],
                    )
                    for j, (option, cost) in enumerate(options[k])
                }
        except _OutOfTime:
            return None
        _, way = min(ways.values(), key=lambda found: found[0])
        return {call: compiler for option in way for call, compiler in option.items()}

    def _options(self, bindings: Sequence[Any]) -> list[tuple[Option, float]]:
        names = [b.var.name for b in bindings]
        found: dict[tuple[tuple[str, str], ...], float] = {}
        compilers = self._planner.compilers
        for order in [*orders(compilers), []]:
            placed = self._planner.in_order(order)
            option = {name: placed.get(name, HOST) for name in names}
            if tuple(option.items()) not in found:
                cost = self._cost(bindings, option, _HOPELESS * min(found.values(), default=math.inf))
                if cost is not None:
                    found[tuple(option.items())] = cost
        limit = _HOPELESS * min(found.values(), default=0.0)
        return [(dict(option), cost) for option, cost in found.items() if cost <= limit]

    def _seam(self, k: int, left: tuple[Option, float], right: tuple[Option, float]) -> float:
        """What blocks k - 1 and k cost together, less what each costs alone."""
        before, after = self._blocks[k - 1], self._blocks[k]
        (a, cost_a), (b, cost_b) = left, right
        own = {x.var for x in before}
        readers = [x for x in after if own.intersection(self._block.inputs([x]))]
        crossing = {v for x in readers for v in self._block.inputs([x]) if v in own}
        if {a[v.name] for v in crossing}.isdisjoint(b[x.var.name] for x in readers):
            return 0.0
        both = self._cost([*before, *after], {**a, **b})
        return 0.0 if both is None else both - cost_a - cost_b

    def _cost(self, bindings: Sequence[Any], option: Option, limit: float = math.inf) -> float | None:
        if time.perf_counter() > self._deadline:
            raise _OutOfTime
        work = host_workload(bindings, self._block, self._planner.mod)
        identity = content_of(work.function, work.module), tuple(option[b.var.name] for b in bindings)
        if identity not in self._known:
            self._known[identity] = self._planner.of_part(work.as_model()).plan(option).cost(self._costs, limit)
        return self._known[identity]


def blocks_of(planner: Planner) -> Iterator[list[Any]]:
    """The bindings of main in a chain of blocks; one block if it is none."""
    found = [block for _, block in dataflow_blocks(planner.mod)]
    if len(found) != 1:
        return
    bindings = list(found[0].bindings)
    cuts = list(_cuts(bindings, planner))
    if len(cuts) >= _FEW_BLOCKS:
        cuts = [p for p in cuts if is_op_call(bindings[p].value) and not is_cheap(bindings[p].value)]
    yield from (bindings[a:b] for a, b in zip([0, *cuts], [*cuts, len(bindings)], strict=True))


def _cuts(bindings: Sequence[Any], planner: Planner) -> Iterator[int]:
    """Positions before which one large tensor, and no group of calls that some compiler takes together, is cut."""
    place = {b.var: i for i, b in enumerate(bindings)}
    last = dict(place)  # variable -> position of its last reader
    for i, binding in enumerate(bindings):
        for var in relax.analysis.free_vars(binding.value):
            if var in last:
                last[var] = i
        if not isinstance(binding.var, relax.DataflowVar):
            last[binding.var] = len(bindings)
    by_name = {var.name: i for var, i in place.items()}
    spans = [sorted(by_name[c] for c in g.calls if c in by_name) for g in planner.groups]
    inside = {p for span in spans if span for p in range(span[0] + 1, span[-1] + 1)}
    for p in range(1, len(bindings)):
        if p not in inside:
            sizes = [type_bytes(b.var.ty) for b in bindings[:p] if last[b.var] >= p]
            if sum(size * _SMALL > max(sizes) for size in sizes) == 1:
                yield p


_GAIN = 0.02  # a smaller one is within the noise of most machines
_CHAIN_SHARE = 0.6  # of the time that is left


@dataclass(frozen=True)
class Found:
    """Who gets each call; ``others`` are the other placements of known cost, the cheapest first, and ``alone`` those by
    which one compiler is used alone, if it is not hopelessly dear.
    """

    placement: Mapping[str, str]
    default: Mapping[str, str]
    tried: int
    others: Sequence[Mapping[str, str]] = ()
    alone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


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
        return plan, plan.cost(self._costs, limit)

    def run(self, default: Mapping[str, str]) -> Found:
        plan, best = self.cost(default)
        if best is None:  # nothing to compare with
            return Found(default, default, self.tried)
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
        near = [other.owners for seconds, other in complete if seconds <= _HOPELESS * best]
        alone = {c: self._planner.plan(self._planner.in_order([c])).owners for c in self._planner.compilers}
        alone = {c: owners for c, owners in alone.items() if owners in near}
        return Found(plan.owners, default, self.tried, others, alone)

    def _late(self) -> bool:
        return time.perf_counter() > self._deadline

    def _starts(self) -> Iterator[dict[str, str]]:
        """The simple orders of priority; the best way through a chain."""
        for order in orders(self._planner.compilers):
            yield self._planner.in_order(order)
        now = time.perf_counter()
        best = by_dynamic_programming(self._planner, self._costs, now + _CHAIN_SHARE * (self._deadline - now))
        if best is not None:
            yield best

    def _moves(self, plan: Plan) -> Iterator[dict[str, str]]:
        """The likeliest gain first."""
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
        able = calls if compiler == HOST else calls & self._planner.taken[compiler]
        return dict.fromkeys(sorted(able), compiler)


def search(planner: Planner, costs: Costs, budget_s: float, tell: Callable[[str], None] = lambda line: None) -> Found:
    return _Search(planner, costs, time.perf_counter() + budget_s, tell).run(planner.default())


def _equal_parts(plan: Plan) -> list[list[Part]]:
    found: dict[tuple[str, str], list[Part]] = {}
    for part in plan.parts:
        found.setdefault((part.workload.compiler, part.workload.key), []).append(part)
    return list(found.values())
