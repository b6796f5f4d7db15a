"""A model as a chain of blocks, and the cheapest choice for each block by dynamic programming.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import relax

from ..ir.relax_utils import is_op_call
from ..regions.blocks import Block, dataflow_blocks
from ..regions.cost import is_cheap, type_bytes
from ..vendors.namespaces import HOST
from .costs import Costs
from .plans import Planner, orders
from .workload import Workload, host_workload, text_of

_FEW_BLOCKS = 24  # a model with more has cuts only in front of calls that compute much
_SMALL = 16  # a tensor that is so many times smaller than another at a cut is no reason against the cut
_HOPELESS = 3.0  # an option that costs so many times the best one of its block is left out

#: call -> compiler, for the calls of one block
Option = Mapping[str, str]


def by_dynamic_programming(planner: Planner, costs: Costs, deadline: float) -> dict[str, str] | None:
    """The cheapest placement of a chain of blocks.

    Returns
    -------
    dict or None
        None if the model is no chain, a cost is unknown, or the time is over.
    """
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
        """The cheapest way through all blocks."""
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
        """The orders of the compilers for a block that differ, each with its cost."""
        names = [b.var.name for b in bindings]
        found: dict[tuple[tuple[str, str], ...], float] = {}
        compilers = self._planner.compilers
        for order in [*orders(compilers), *([alone] for alone in compilers), []]:
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
        identity = text_of(work.function, work.module), tuple(option[b.var.name] for b in bindings)
        if identity not in self._known:
            self._known[identity] = self._sum(work, option, limit)
        return self._known[identity]

    def _sum(self, work: Workload, option: Option, limit: float) -> float | None:
        plan = self._planner.of_part(work.as_model()).plan(option)
        seconds = [self._costs.of(part.workload, limit) for part in plan.parts]
        return None if None in seconds else sum(s for s in seconds if s is not None)


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
