"""Fall-back: each region is tried when it is formed; a call that fails goes to the next compiler or back to TVM.

    form regions ──> policy ──> `fits`, then attempt ──all work──> done
         ^                          │ one is refused
         │                  bisect: the shortest refused run of its calls
         │                 ┌────────┴─────────┐
         │        its last call         its last call works alone:
         │        is refused alone      a cut before it, and on behind the cut
         └── candidates after it, else TVM ──┘

A region that does not fit is cut at the cheapest place that leaves a part which fits (`merge`).

The compilation remembers attempts by the content of the region, so one that did not change is not tried again, and a
model in which nothing fails pays one attempt per region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import CUT, MATCH, Fact
from ..core.verdict import Failure, calling, describe, expect
from ..graph.cost import RegionPolicy, Work, usual_sizes
from ..ir.functions import Block, Body, RegionBuilder, dataflow_blocks, inline_calls
from ..ir.relax_utils import codegen_of, composite_of, free_name, global_var, op_calls, ops_of, with_functions
from ..prepare import FoldTransposed
from ..vendors import Namespace
from ..vendors.codegen import attempt as route_attempt
from ..vendors.namespaces import HOST, compilation_of, find_namespace, get_target_options, namespace
from .annotate import Matcher, compilers_of
from .merge import Unit, bytes_between, cheapest_place, form_units, longest, why_not_fits

#: ``attempt(namespace, function)``: whether something can be made of a region
Attempt = Callable[[Namespace, relax.Function], "Failure | None"]
#: who has a limit, beside compilers: all of them together
MODULE = "the module"
#: ``question(region, bindings)``: what is wrong with a region of some of the bindings of another
Question = Callable[["_Region", Sequence[Any]], "Failure | None"]


def attempt_in(mod: tvm.IRModule, *, dry_run: bool = False) -> Attempt:
    """By routes, with the options of a module; in a ``dry_run`` none is asked that compiles the region for it."""

    def attempt(ns: Namespace, region: relax.Function) -> Failure | None:
        if dry_run and ns.route.compiles:
            return None
        return route_attempt(ns.route, region, get_target_options(mod, ns.name))

    return attempt


@dataclass(eq=False)
class BlockPlan:
    host: Any
    block: Block
    units: list[Unit]
    #: the units of a compiler whose results are read, as functions
    regions: dict[Unit, RegionBuilder] = field(default_factory=dict)


#: dataflow block of the module → its replacement
Plan = dict[Any, BlockPlan]


@dataclass(eq=False)
class _Region:
    host: Any
    block: Block
    unit: Unit

    @property
    def calls(self) -> list[Any]:
        return [b for b in self.unit.bindings if isinstance(b.value, relax.Call)]

    def part(self, start: int, end: int) -> list[Any]:
        """Bindings of the calls ``start`` to ``end``, and of what is between these."""
        places = [i for i, b in enumerate(self.unit.bindings) if isinstance(b.value, relax.Call)]
        first, last = places[start] if start else 0, places[end] if end < len(places) else None
        return self.unit.bindings[first:last]


@dataclass(frozen=True)
class _Return:
    """A composite call that goes back to the candidates behind a composite (by default its own) or a compiler."""

    host: Any
    call: Any
    failure: Failure
    behind: str = ""


class Fallback:
    """Decide which calls are offloaded.

    ``mod`` has host functions that call composite functions; after `run` only those calls do that work, and ``facts``
    has those that went back, with the reasons. ``policy`` is asked instead of the namespaces' own, and ``limits`` say
    how many regions may be formed, by default as the policies do: compiler, or `MODULE`, → number.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        attempt: Attempt,
        policy: RegionPolicy | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.mod = mod
        self.facts: list[Fact] = []
        self._attempt = attempt
        self._policy = policy
        self.limits = self._limits() if limits is None else dict(limits)
        self._sizes = usual_sizes(mod)
        self._parts: dict[Any, int] = {}  # variable -> side of a cut
        self._cuts = count(1)
        self._built: dict[Any, RegionBuilder] = {}  # calls and results -> the function of just these
        self._lengths: dict[str, int] = {}  # compiler -> calls of the region that was cut off last
        # composite and compilers -> the result of the candidates after it, and the crashes meanwhile
        self._behind: dict[Any, tuple[Body, list[Fact]]] = {}

    def run(self) -> Plan:
        """Give back calls that do not work until all others work."""
        while True:
            plan = self._plan()
            regions = [_Region(p.host, p.block, u) for p in plan.values() for u in p.units if u.compiler]
            parts = dict(self._parts)
            returned = [item for region in regions for item in self._judge(region)]
            if not returned and parts == self._parts:
                returned = self._beyond_the_limit(regions)
                if not returned:
                    return self._with_functions(plan)
            self._give_back(returned)

    def _with_functions(self, plan: Plan) -> Plan:
        for block_plan in plan.values():
            for unit in block_plan.units:
                outputs = block_plan.block.outputs(unit.bindings)
                if unit.compiler and outputs:
                    block_plan.regions[unit] = self._build(unit.bindings, outputs)
        return plan

    def _plan(self) -> Plan:
        blocks = list(dataflow_blocks(self.mod))
        composites = {
            gv: name.partition(".") for gv, func in self.mod.functions.items() if (name := composite_of(func))
        }
        fused = {gv for gv, (compiler, _, name) in composites.items() if name in namespace(compiler).fused_ops}
        for binding in [b for _, block in blocks for b in block.bindings] if fused else ():
            if binding.var not in self._parts and getattr(binding.value, "op", None) in fused:
                self._parts[binding.var] = next(self._cuts)  # a kernel of its own
        compiler_of = {gv: compiler for gv, (compiler, _, _) in composites.items()}
        return {
            block: BlockPlan(host, Block(block), form_units(block, compiler_of, self._parts)) for host, block in blocks
        }

    def _judge(self, region: _Region) -> list[_Return]:
        if returned := self._unwanted(region, self._policies(region.unit.compiler)):
            return returned
        for ask in (self._fit, self._try):
            if ask(region, region.unit.bindings) is not None:
                return self._narrow(region, ask)
        return []

    def _policies(self, compiler: str) -> list[RegionPolicy]:
        own = namespace(compiler).policy
        in_place = self._policy is not None and not self._policy.on_top
        return [p for p in (self._policy, None if in_place else own) if p is not None]

    def _unwanted(self, region: _Region, policies: Sequence[RegionPolicy]) -> list[_Return]:
        by_name = any(p.exclude or p.force for p in policies)
        names = [(call, self._names(call)) for call in region.calls] if by_name else []
        excluded = [(call, entry) for call, n in names for p in policies if (entry := p.excluded_by(n))]
        if excluded:
            return [_Return(region.host, c, Failure("policy", f"excluded by {entry!r}")) for c, entry in excluded]
        if any(p.forces(n) for p in policies for _, n in names):
            return []
        work = self._work(region)
        failure = next(filter(None, (_judgement(p, work) for p in policies)), None)
        if failure is None:
            return []
        return [_Return(region.host, c, failure, region.unit.compiler) for c in region.calls]

    def _names(self, binding: Any) -> list[str]:
        func = self._callee(binding)
        inner = [name for var, call in op_calls(func) for name in (var.name, call.op.name)]
        return [composite_of(func), binding.var.name, *inner]

    def _callee(self, binding: Any) -> relax.Function:
        return self.mod[binding.value.op]

    def _work(self, region: _Region) -> Work:
        bindings = region.unit.bindings
        neighbours = self._compilers(region.block.neighbours(bindings))
        return Work(
            calls=[call for b in region.calls for _, call in op_calls(self._callee(b))],
            crossing=region.block.inputs(bindings) + region.block.outputs(bindings),
            neighbours=neighbours,
            is_beside_host=HOST in neighbours,
            sizes=self._sizes,
        )

    def _compilers(self, values: Sequence[Any]) -> frozenset[str]:
        callees = [value.op for value in values if isinstance(value, relax.Call)]
        names = {composite_of(self.mod[op]).partition(".")[0] for op in callees if isinstance(op, tvm.ir.GlobalVar)}
        return frozenset(names - {""}) | {HOST for op in callees if isinstance(op, tvm.ir.Op)}

    def _fit(self, region: _Region, bindings: Sequence[Any]) -> Failure | None:
        ns = namespace(region.unit.compiler)
        if ns.functions.fits is None:
            return None  # and no function is needed
        return why_not_fits(ns, self._function(region, bindings).function, get_target_options(self.mod, ns.name))

    def _try(self, region: _Region, bindings: Sequence[Any]) -> Failure | None:
        return self._attempt(namespace(region.unit.compiler), self._function(region, bindings).function)

    def _function(self, region: _Region, bindings: Sequence[Any]) -> RegionBuilder:
        return self._build(bindings, region.block.outputs(bindings) or [bindings[-1].var])

    def _build(self, bindings: Sequence[Any], outputs: Sequence[Any]) -> RegionBuilder:
        """The function of a group of bindings; the same one for the same calls and results."""
        calls = frozenset((b.var, b.value.op) for b in bindings if isinstance(b.value, relax.Call))
        key = (calls, *outputs)
        if key not in self._built:
            self._built[key] = RegionBuilder(bindings, outputs, self.mod.__getitem__)
        return self._built[key]

    def _narrow(self, region: _Region, ask: Question) -> list[_Return]:
        """Find the calls that are refused by themselves; where there are none, cut the region into parts that work."""
        calls, start = region.calls, 0
        while True:
            works, crossing = partial(self._works, region, ask, start), partial(self._crossing, region, start)
            length = longest(works, len(calls) - start, self._lengths.get(region.unit.compiler, 0))
            if (end := start + length) == len(calls):
                return []
            failure, culprit = ask(region, region.part(start, end + 1)), calls[end]
            assert failure is not None
            alone = failure if length == 0 else ask(region, [culprit])
            if alone is not None:
                break
            self._lengths[region.unit.compiler] = length
            if ask == self._fit:  # only that a part fits is cheap to find out
                end = start + cheapest_place(length, crossing)
            self._cut(region, start, end, failure)
            start = end
        returned = [_Return(region.host, culprit, alone)]
        for other in calls[end + 1 :]:  # often all calls of a kind fail: spare each of them its own bisection
            if composite_of(self._callee(other)) == composite_of(self._callee(culprit)):
                alone = ask(region, [other])
                returned += [_Return(region.host, other, alone)] if alone is not None else []
        return returned

    def _works(self, region: _Region, ask: Question, start: int, length: int) -> bool:
        return ask(region, region.part(start, start + length)) is None

    def _crossing(self, region: _Region, start: int, length: int) -> int:
        end = start + length
        return bytes_between(region.block, region.part(start, end), region.part(end, len(region.calls)), self._sizes)

    def _cut(self, region: _Region, start: int, at: int, failure: Failure) -> None:
        calls = region.calls
        self._parts.update(dict.fromkeys((b.var for b in calls[at:]), next(self._cuts)))
        before = ", ".join(b.var.name for b in calls[start:at])
        reason = f"works, but not in one region with {before}: {failure.stage}: {failure.reason}"
        self._note(region.host, calls[at], Failure(CUT, reason))

    def _limits(self) -> dict[str, int]:
        whole = None if self._policy is None else self._policy.max_regions
        found = {} if whole is None else {MODULE: whole}
        functions = self.mod.functions.values()
        candidates = {c for f in functions for c in (*compilers_of(f, None), composite_of(f).partition(".")[0])}
        for compiler in sorted(filter(find_namespace, candidates)):
            limits = [p.max_regions for p in self._policies(compiler) if p.max_regions is not None]
            if limits:
                found[compiler] = min(limits)
        return found

    def _beyond_the_limit(self, regions: Sequence[_Region]) -> list[_Return]:
        standing = [codegen_of(self.mod[gv]) for gv in self._called()] if self.limits else []
        for who, limit in self.limits.items():
            counted = [r for r in regions if who in (MODULE, r.unit.compiler)]
            left = max(limit - sum(bool(owner) and who in (MODULE, owner) for owner in standing), 0)
            if len(counted) > left:
                counted.sort(key=lambda r: -self._work(r).flops)
                failure = Failure("policy", f"{who} may have {limit} region(s), and others have more operations")
                return [_Return(r.host, c, failure, r.unit.compiler) for r in counted[left:] for c in r.calls]
        return []

    def _called(self) -> list[Any]:
        calls = [b.value for _, block in dataflow_blocks(self.mod) for b in block.bindings]
        return [c.op for c in calls if isinstance(c, relax.Call) and isinstance(c.op, tvm.ir.GlobalVar)]

    def _give_back(self, returned: Sequence[_Return]) -> None:
        bodies: dict[Any, dict[Any, Body]] = {}
        for item in returned:
            self._note(item.host, item.call, item.failure)
            bodies.setdefault(item.host, {})[item.call.var] = self._next_candidate(item)
        self.mod = with_functions(self.mod, {host: inline_calls(self.mod[host], b) for host, b in bodies.items()})

    def _next_candidate(self, item: _Return) -> Body:
        """The body of a composite, with the calls that the candidates after it take from it."""
        compilers = compilers_of(self.mod[item.host], None)
        key = (item.call.value.op, item.behind, *compilers)
        if key not in self._behind:
            func = self._callee(item.call)
            plain = func.without_attr("Composite").without_attr("Primitive")
            matcher = Matcher(compilers, ops_of(func), compilation=compilation_of(self.mod, compilers))
            matcher.skip_to_behind(item.behind or composite_of(func))
            mod = matcher.run(FoldTransposed(tvm.IRModule({tvm.ir.GlobalVar("body"): plain})), ["body"])
            composites = {gv: f for gv, f in mod.functions.items() if composite_of(f)}
            self._behind[key] = (
                Body(mod["body"], self._add(composites)),
                [fact for fact in matcher.facts if fact.stage != MATCH],
            )
        body, facts = self._behind[key]
        result = getattr(self._callee(item.call).body.body, "name", "")
        for fact in facts:
            name = item.call.var.name if fact.name == result else fact.name
            self.facts.append(replace(fact, function=item.host.name_hint, name=name))
        return body

    def _add(self, functions: Mapping[Any, relax.Function]) -> dict[Any, Any]:
        taken = {gv.name_hint for gv in self.mod.get_global_vars()}
        renamed = {}
        for gv, func in functions.items():
            renamed[gv] = global_var(free_name(gv.name_hint, taken), func)
        self.mod = with_functions(self.mod, {new: functions[old] for old, new in renamed.items()})
        return renamed

    def _note(self, host: Any, binding: Any, failure: Failure) -> None:
        func = self._callee(binding)
        compiler = composite_of(func).partition(".")[0]
        calls = list(op_calls(func))
        for var, call in calls:
            name = binding.var.name if var is calls[-1][0] else var.name
            fact = Fact(host.name_hint, name, call.op.name, compiler, failure.stage, failure.reason)
            self.facts.append(fact)


def _judgement(policy: RegionPolicy, work: Work) -> Failure | None:
    """A policy's reason against a region; if a policy crashes, its regions stay with TVM, and the build goes on."""
    who = f"{type(policy).__name__}.why_not"
    try:
        with calling(who):
            reason = expect(policy.why_not(work), (str, type(None)), who, 'a reason against the region, or ""')
    except Exception as error:
        return Failure("policy crash", f"{who}: {describe(error)}")
    return Failure("policy", f"not worth a region: {reason}") if reason else None
