"""What a database knows of a model: the times of the regions that each compiler would make, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import tvm

from .costs import Costs
from .database import Database
from .plans import Plan, Planner, orders, prepared


@dataclass(frozen=True)
class RegionTime:
    """The time of one call of a region, and its number of calls."""

    seconds: float
    calls: int


@dataclass(frozen=True)
class Times:
    """The times of a model's regions.

    Attributes
    ----------
    regions : mapping
        Call → compiler → the region in which this compiler has the call when it comes first.
    default : float or None
        The sum over the regions of the default placement; ``None`` where one is not known.
    without : mapping of str to float
        Compiler → the sum over the regions of the other compilers alone, where all are known.
    """

    regions: Mapping[str, Mapping[str, RegionTime]]
    default: float | None
    without: Mapping[str, float]


def times_of(
    mod: tvm.IRModule,
    compilers: Sequence[str],
    placement: Mapping[str, str],
    database: str | PathLike[str],
) -> Times:
    """Look the times of a model up; nothing is measured.

    Parameters
    ----------
    mod : IRModule
        As imported, with the options of its compilers.
    compilers : sequence of str
        Namespaces in order of priority.
    placement : mapping of str to str
        The one to report on.
    database : path-like
        The file.
    """
    planner = Planner(prepared(mod, compilers), compilers)
    costs = Costs(Database(Path(database)), measures=False)
    regions: dict[str, dict[str, RegionTime]] = {}
    sums: dict[tuple[str, ...], float] = {}
    for order in orders(compilers):
        plan = planner.plan(planner.in_order(order))
        _note(plan, costs, regions)
        total = _sum(plan, costs)
        if total is not None:
            sums[tuple(order)] = total
    default = planner.plan(planner.default())
    for plan in (default, planner.plan(placement)):
        _note(plan, costs, regions)
    without = {c: sums.get(tuple(other for other in compilers if other != c)) for c in compilers}
    return Times(regions, _sum(default, costs), {c: s for c, s in without.items() if s is not None})


def _note(plan: Plan, costs: Costs, regions: dict[str, dict[str, RegionTime]]) -> None:
    """The times of a plan's regions; of two regions of a compiler with the same call, the larger one is kept."""
    for part in plan.parts:
        seconds = costs.of(part.workload)
        for call in part.calls if seconds is not None else ():
            before = regions.setdefault(call, {}).get(part.workload.compiler)
            if before is None or before.calls < len(part.calls):
                regions[call][part.workload.compiler] = RegionTime(float(seconds or 0.0), len(part.calls))


def _sum(plan: Plan, costs: Costs) -> float | None:
    seconds = [costs.of(part.workload) for part in plan.parts]
    return None if None in seconds else sum(s for s in seconds if s is not None)
