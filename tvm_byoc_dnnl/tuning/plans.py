"""The cost of a workload, and of what a library can choose from: looked up, modelled by a vendor, or measured.

The workloads that would run with a placement, without a whole build; and what a database knows of them.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import Shape

from ..core import _native
from ..core.compilation import compiling, knowing
from ..core.files import write_text
from ..core.tensor_info import TensorInfo, random_arrays
from ..core.verdict import describe
from ..graph import PortableGraph
from ..graph.cost import RegionPolicy, shape_of, size_of, usual_sizes
from ..ir.relax_utils import codegen_of, composite_of, op_calls
from ..ir.tvm_compat import dtype_of
from ..partitioning import PartitionGraph, annotate
from ..partitioning.annotate import AnnotateExternalCompiler
from ..partitioning.fallback import BlockPlan, Fallback, attempt_in
from ..partitioning.trial import Choice, Match, PlacedBy, first_in_order, unknown_whole
from ..pipeline import PIPELINE
from ..prepare import ExactForms
from ..runtime.runner import Runner
from ..vendors import Namespace, told
from ..vendors.codegen import Times
from ..vendors.namespaces import HOST, compilers, get_target_options, namespace
from ..vendors.portable import PortableCodegen, lower_region
from ..whole.table import expand
from .database import Database, Timing, Workload, host_workload, measure, thread_count

_ROUNDS = 15


def measure_candidates(mod: tvm.IRModule, database: Database, deadline: float, tell: Callable[[str], None]) -> int:
    """Measure what a database does not know of a partitioned module's regions; the number of new workloads."""
    count, sizes = 0, usual_sizes(mod)
    for codegen, measured, graph in _graphs(mod):
        static = _static(graph, sizes)
        if static is None or time.perf_counter() > deadline:
            continue
        named = measured(static, 0)
        unknown = named["workloads"].keys() - database.candidates_of(codegen.compiler, named).keys()
        if not unknown:
            continue
        tell(f"measuring what {codegen.compiler} can choose from in {graph.name}: {len(unknown)} operations")
        times = measured(static, _ROUNDS)
        new = {name: found for name, found in times["workloads"].items() if name in unknown}
        database.note_candidates(codegen.compiler, {**times, "workloads": new})
        count += len(new)
    return count


def known_times(mod: tvm.IRModule, database: Database | None) -> Times | None:
    if database is None or not database.has_candidates:
        return None
    sizes = usual_sizes(mod)

    def look_up(codegen: PortableCodegen, graph: PortableGraph) -> dict[str, Any] | None:
        static = _static(graph, sizes)
        if static is None or codegen.measure_candidates is None:
            return None
        named = codegen.measure_candidates(static, 0)
        found = database.candidates_of(codegen.compiler, named)
        return {"setting": named["setting"], "workloads": found} if found else None

    return look_up


def measure_machine(tell: Callable[[str], None]) -> Iterator[str]:
    """Measure this machine for each library, into files of the user's cache; yields them, and what they say."""
    threads = sorted({1, min(2, thread_count()), thread_count()})
    for name in compilers():
        codegen = namespace(name).codegen
        if not isinstance(codegen, PortableCodegen) or codegen.measure_machine is None:
            continue
        path = Path(_native.engine_info(name)["machine"]["file"])
        described, found = codegen.measure_machine(threads, tell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(described, indent=1) + "\n")
        yield f"{path}\n{found}"


def _graphs(mod: tvm.IRModule) -> Iterator[tuple[PortableCodegen, Callable[..., Mapping[str, Any]], PortableGraph]]:
    """The graphs of the regions whose library can choose, each with its codegen and the measurement."""
    for gv, func in mod.functions.items():
        codegen = namespace(codegen_of(func)).codegen if codegen_of(func) else None
        if isinstance(codegen, PortableCodegen) and codegen.measure_candidates is not None:
            options = get_target_options(mod, codegen.compiler)
            graph = lower_region(namespace(codegen.compiler), func, gv.name_hint, options=options)
            yield codegen, codegen.measure_candidates, graph


def _static(graph: PortableGraph, sizes: Mapping[str, int]) -> PortableGraph | None:
    if not graph.symbols <= sizes.keys():
        return None
    return graph.specialize({name: sizes[name] for name in graph.symbols}) if graph.symbols else graph


_logger = logging.getLogger("tvm_byoc_dnnl")

_EACH_S = 2.0  # for the measurement of one workload


@dataclass
class Costs:
    """Seconds of workloads, looked up in a database; those that are missing are measured, if ``measures``."""

    database: Database
    measures: bool
    target: Any = "llvm"
    tell: Callable[[str], None] = lambda line: None
    measured: int = 0
    has_models: bool = False
    longest_s: float = 0.0
    _known: dict[tuple[str, str], float | None] = field(default_factory=dict)
    _host_s: float = 0.0  # the least time of a FLOP in calls that stay with TVM; 0: none was timed

    def of(self, workload: Workload, limit: float = math.inf) -> float | None:
        """``None`` if unknown, or if calls of TVM's would take longer than ``limit`` at the best rate before."""
        identity = (workload.compiler, workload.key)
        if identity not in self._known:
            is_hopeless = workload.compiler == HOST and self._host_s * workload.flops > limit
            if is_hopeless and self.database.time_of(workload) is None:
                return None
            self._known[identity] = self._asked(workload)
        return self._known[identity]

    def _asked(self, workload: Workload) -> float | None:
        ns = None if workload.compiler == HOST else namespace(workload.compiler)
        if ns is not None and ns.functions.cost is not None:
            self.has_models = True
            seconds = self._modelled(workload, ns)
            if seconds is not None:
                return seconds
        timing = self.database.time_of(workload)
        if timing is None and self.measures:
            timing = self._measure(workload)
        if timing is not None and workload.compiler == HOST and workload.flops:
            self._host_s = min(self._host_s or math.inf, timing.seconds / workload.flops)
        return None if timing is None else timing.seconds

    def _modelled(self, workload: Workload, ns: Namespace) -> float | None:
        try:
            seconds = told(ns, "cost", workload.as_model())
        except Exception as error:
            _logger.warning("%s; %s is measured", describe(error), workload.summary)
            return None
        return None if seconds is None else float(seconds)

    def _measure(self, workload: Workload) -> Timing | None:
        self.tell(f"measuring {workload.compiler}: {workload.summary}")
        started = time.perf_counter()
        try:
            timing = measure(callable_of(workload.as_model(), self.target), _EACH_S)
        except Exception as error:  # what cannot be compiled alone is no candidate; the model itself falls back
            _logger.info("not measured: %s: %s: %s", workload.compiler, workload.summary, describe(error))
            return None
        self.longest_s = max(self.longest_s, time.perf_counter() - started)
        self.measured += 1
        self.database.note_time(workload, timing)
        return timing


def callable_of(mod: tvm.IRModule, target: Any, choices: Database | None = None) -> Callable[[], object]:
    """One call of a partitioned module with random inputs, open dims with the sizes that it is optimised for."""
    sizes = usual_sizes(mod)
    arguments = [_argument(i, p.ty, sizes) for i, p in enumerate(mod["main"].params)]
    with compiling():
        pipeline = relax.get_pipeline(PIPELINE, times=known_times(mod, choices))
        runner = Runner(tvm.compile(mod, target=target, relax_pipeline=pipeline))
    return lambda: runner.run_tvm(*arguments)


def _argument(position: int, ty: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(ty, relax.ShapeType):
        return Shape([size_of(d, sizes) for d in ty.values])
    info = TensorInfo(f"input {position}", dtype_of(ty), shape_of(ty, sizes))
    (array,) = random_arrays([info], position, {})
    return tvm.runtime.tensor(array)


def orders(compilers: Sequence[str]) -> list[list[str]]:
    """The simple orders of priority: each compiler alone, each before all others, and each left out."""
    without = [[other for other in compilers if other != c] for c in compilers]
    found = [[c] for c in compilers] + [[c, *others] for c, others in zip(compilers, without)] + without
    return [order for i, order in enumerate(found) if order and order not in found[:i]]


@dataclass(frozen=True)
class Group:
    """The results of calls that one compiler takes together, by a pattern or operator of its own."""

    compiler: str
    kind: str
    calls: frozenset[str]


@dataclass(frozen=True, eq=False)
class Part:
    """One region, or neighbouring calls of TVM: its work, and the variables that hold the results of its calls."""

    workload: Workload
    calls: frozenset[str]


@dataclass(frozen=True, eq=False)
class Plan:
    """All parts of a model, and for each call the compiler that has it in the end, ``"tvm"`` included."""

    parts: Sequence[Part]
    owners: Mapping[str, str]

    def cost(self, costs: Costs, limit: float = math.inf) -> float | None:
        """``None`` where the cost of a part is unknown, or as soon as the sum is above the limit."""
        total = 0.0
        for part in self.parts:
            seconds = costs.of(part.workload, limit - total)
            if seconds is None or total + seconds > limit:
                return None
            total += seconds
        return total


def prepared(mod: tvm.IRModule, compilers: Sequence[str]) -> tvm.IRModule:
    """A Relax module, as imported, in the form in which `compile` asks these compilers about it."""
    known = expand(ExactForms(mod), lambda func: unknown_whole(func, compilers))
    return annotate.prepared(known, compilers)[0]


class Planner:
    """Plans of a model that is `prepared`, with compilers in order of priority."""

    def __init__(self, mod: tvm.IRModule, compilers: Sequence[str], known: dict[Any, Any] | None = None) -> None:
        self.compilers = list(compilers)
        self.mod = mod
        self._known = {} if known is None else known  # of regions, from plan to plan

    def of_part(self, mod: tvm.IRModule) -> Planner:
        return Planner(mod, self.compilers, self._known)

    @cached_property
    def groups(self) -> list[Group]:
        """All that some compiler would take, asked alone."""
        return [group for name in self.compilers for group in self._asked_alone(name)]

    @cached_property
    def taken(self) -> Mapping[str, frozenset[str]]:
        """Compiler → the calls that it would take, asked alone."""
        return {
            name: frozenset().union(*(g.calls for g in self.groups if g.compiler == name)) for name in self.compilers
        }

    def _asked_alone(self, compiler: str) -> list[Group]:
        found: list[Group] = []

        def note(match: Match) -> str:
            found.append(Group(compiler, match.composite.partition(".")[2], frozenset(match.calls)))
            return first_in_order(match)

        AnnotateExternalCompiler(compiler, prepare=False, choice=note)(self.mod)
        return found

    def in_order(self, order: Sequence[str]) -> dict[str, str]:
        """The placement in which the first compiler of an order that takes a call gets it, whatever policies say."""
        everything = sorted(frozenset().union(*self.taken.values()))
        return {call: next((c for c in order if call in self.taken[c]), HOST) for call in everything}

    def default(self) -> Mapping[str, str]:
        """The compiler of each call without any measurement: by priority and by the namespaces' own policies."""
        return self._plan(first_in_order, None).owners

    def plan(self, placement: Mapping[str, str]) -> Plan:
        """The workloads that would run with a placement, whatever the namespaces' policies say."""
        return self._plan(PlacedBy(placement), RegionPolicy())

    def partitioned(self, placement: Mapping[str, str] | None) -> tvm.IRModule:
        """The model with a placement, or (``None``) by default, ready to be compiled."""
        choice = first_in_order if placement is None else PlacedBy(placement)
        policy = None if placement is None else RegionPolicy()
        mod = AnnotateExternalCompiler(self.compilers, prepare=False, choice=choice)(self.mod)
        return PartitionGraph(policy=policy)(mod)

    def _plan(self, choice: Choice, policy: RegionPolicy | None) -> Plan:
        inside: dict[str, frozenset[str]] = {}  # result of a composite call -> all that it computes

        def note(match: Match) -> str:
            chosen = choice(match)
            if chosen == match.candidates[0]:
                inside[match.result] = frozenset(match.calls)
            return chosen

        mod = AnnotateExternalCompiler(self.compilers, prepare=False, choice=note)(self.mod)
        fallback = Fallback(mod, attempt_in(mod), policy)
        with knowing(regions=self._known):
            blocks = fallback.run().values()
        parts = [part for block in blocks for part in _parts(fallback.mod, block, inside)]
        return Plan(parts, {call: part.workload.compiler for part in parts for call in part.calls})


def _parts(mod: tvm.IRModule, plan: BlockPlan, inside: Mapping[str, frozenset[str]]) -> Iterator[Part]:
    """The regions of a dataflow block, and the groups of neighbouring calls between them."""
    host: list[Any] = []
    for unit in plan.units:
        if not unit.compiler:
            host += unit.bindings
        elif unit in plan.regions:
            calls = {name for binding in unit.bindings for name in _names(mod, binding, inside)}
            yield Part(Workload(unit.compiler, plan.regions[unit].function, mod), frozenset(calls))
    for bindings in _connected(host):
        calls = {name for binding in bindings for name in _names(mod, binding, inside)}
        if calls and plan.block.outputs(bindings):
            yield Part(host_workload(bindings, plan.block, mod), frozenset(calls))


def _names(mod: tvm.IRModule, binding: Any, inside: Mapping[str, frozenset[str]]) -> frozenset[str]:
    name, value = binding.var.name, binding.value
    if not isinstance(value, relax.Call):
        return frozenset()
    if isinstance(value.op, tvm.ir.GlobalVar) and composite_of(mod[value.op]):
        names = inside.get(name, frozenset())
        if len(names) == len(list(op_calls(mod[value.op]))):  # else it was given back, and another took parts of it
            return names
    return frozenset([name])


def _connected(bindings: Sequence[Any]) -> list[list[Any]]:
    """Bindings in groups, in which each reads another one or is read."""
    group: dict[Any, list[Any]] = {}
    for binding in bindings:
        mine = [binding]
        for var in relax.analysis.free_vars(binding.value):
            other = group.get(var)
            if other is not None and other is not mine:
                mine = [*other, *mine]
                group.update((b.var, mine) for b in other)
        group.update((b.var, mine) for b in mine)
    order = {binding.var: i for i, binding in enumerate(bindings)}
    unique = {id(g): g for g in group.values()}.values()
    return [sorted(g, key=lambda b: order[b.var]) for g in unique]


@dataclass(frozen=True)
class RegionTime:
    seconds: float
    calls: int


@dataclass(frozen=True)
class CallTimes:
    """Call → compiler → its region; sums over the regions of the default placement, and without each compiler."""

    regions: Mapping[str, Mapping[str, RegionTime]]
    default: float | None
    without: Mapping[str, float]


def times_of(
    mod: tvm.IRModule,
    compilers: Sequence[str],
    placement: Mapping[str, str],
    database: str | PathLike[str],
) -> CallTimes:
    """Look the times of an imported model up, for a report on a placement."""
    planner = Planner(prepared(mod, compilers), compilers)
    costs = Costs(Database(Path(database)), measures=False)
    regions: dict[str, dict[str, RegionTime]] = {}
    sums: dict[tuple[str, ...], float] = {}
    for order in orders(compilers):
        plan = planner.plan(planner.in_order(order))
        _note(plan, costs, regions)
        total = plan.cost(costs)
        if total is not None:
            sums[tuple(order)] = total
    default = planner.plan(planner.default())
    for plan in (default, planner.plan(placement)):
        _note(plan, costs, regions)
    without = {c: sums.get(tuple(other for other in compilers if other != c)) for c in compilers}
    return CallTimes(regions, default.cost(costs), {c: s for c, s in without.items() if s is not None})


def _note(plan: Plan, costs: Costs, regions: dict[str, dict[str, RegionTime]]) -> None:
    """The times of a plan's regions; of two regions of a compiler with the same call, the larger one is kept."""
    for part in plan.parts:
        seconds = costs.of(part.workload)
        for call in part.calls if seconds is not None else ():
            before = regions.setdefault(call, {}).get(part.workload.compiler)
            if before is None or before.calls < len(part.calls):
                regions[call][part.workload.compiler] = RegionTime(float(seconds or 0.0), len(part.calls))
