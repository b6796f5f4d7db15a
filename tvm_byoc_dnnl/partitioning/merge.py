"""Regions: composite calls of one compiler, merged as far as the result stays convex; and where to cut one that is too
large.

TVM's MergeCompositeFunctions does the same for a module whose only function is ``main`` and has no control flow; this
one takes any function, and remembers which calls a region was made of.

    a = npu.conv2d(x)         region npu_0: conv2d, relu        (a, b)
    b = npu.relu(a)
    c = sign(b)               stays
    d = npu.add(b, c)         region npu_1: add: it depends on `c`, which depends on npu_0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from tvm import relax

from ..core.tvm_fast import ByIdentity, is_a, items
from ..core.verdict import Failure, Reject, as_reject, verdict_of
from ..graph.cost import type_bytes
from ..ir.functions import Block
from ..ir.order import order_constraints, symbol_constraints
from ..vendors import Namespace
from ..vendors.codegen import once


@dataclass(eq=False)
class Unit:
    """Bindings of a dataflow block that stay together: a region of ``compiler``, or (``""``) the host's."""

    compiler: str
    bindings: list[Any] = field(default_factory=list)
    order: int = 0
    #: only units of the same part are merged
    part: int = 0
    #: units whose results it needs itself, and the units that need its results
    parents: set[Unit] = field(default_factory=set)
    children: set[Unit] = field(default_factory=set)
    #: sets of units as bits of a number: itself with all that was merged into it, and what must run before it
    bits: int = 0
    ancestors: int = 0


def form_units(block: Any, compiler_of: Mapping[Any, str], parts: Mapping[Any, int] | None = None) -> list[Unit]:
    """The units of a block in an order in which they can run; those with other numbers in ``parts`` differ."""
    owner: ByIdentity[Unit] = ByIdentity()
    units: dict[Unit, None] = {}
    bindings = items(block.bindings)
    compilers = ByIdentity.of((b.var, compiler_of.get(getattr(b.value, "op", None), "")) for b in bindings)
    constraints = order_constraints(bindings, [var for var, compiler in compilers.items() if compiler])
    symbols = symbol_constraints(bindings)
    needs = ByIdentity.of(
        (b.var, [*items(relax.analysis.free_vars(b.value)), *constraints.get(b.var, ()), *symbols.get(b.var, ())])
        for b in bindings
    )
    for order, binding in enumerate(bindings):
        parents = list(dict.fromkeys(owner[v] for v in needs[binding.var] if v in owner))
        compiler = compilers[binding.var]
        if not compiler and parents and _is_glue(binding.value) and all(p is parents[0] for p in parents):
            unit = parents[0]
        else:
            unit = Unit(compiler, order=order, part=(parts or {}).get(binding.var, 0), bits=1 << order)
            _depend_on(unit, parents)
            units[unit] = None
            for candidate in parents if compiler else ():
                alike = (candidate.compiler, candidate.part) == (compiler, unit.part)
                if alike and _can_merge(unit, candidate):
                    unit = _merge(unit, candidate, units, owner)
        unit.bindings.append(binding)
        owner[binding.var] = unit
    position = ByIdentity.of((binding.var, i) for i, binding in enumerate(bindings))
    for unit in units:
        unit.bindings.sort(key=lambda binding: position[binding.var])
    for unit in [u for u in units if u.compiler]:
        for cast in _casts_of_results(unit, needs):
            unit.bindings.remove(cast)
            owner[cast.var] = Unit("", [cast], order=position[cast.var])
            units[owner[cast.var]] = None
    return _in_order(list(units), owner, needs)


def _casts_of_results(unit: Unit, needs: Mapping[Any, list[Any]]) -> list[Any]:
    """The ``match_cast`` bindings that only other units read: the host checks them, not every codegen does."""
    found: list[Any] = []
    read: ByIdentity[bool] = ByIdentity()
    for binding in reversed(unit.bindings):
        if is_a(binding, relax.MatchCast) and binding.var not in read:
            found.append(binding)
        else:
            read.update((var, True) for var in needs[binding.var])
    return found


def _is_glue(value: Any) -> bool:
    """Bindings that compute nothing; they join the unit of their operand. A library takes tensors only."""
    if is_a(value, relax.Tuple):
        return all(is_a(field.ty, (relax.TensorType, relax.TupleType)) for field in value.fields)
    return is_a(value, (relax.TupleGetItem, relax.Var))


def _depend_on(unit: Unit, parents: Sequence[Unit]) -> None:
    for parent in parents:
        unit.parents.add(parent)
        parent.children.add(unit)
        unit.ancestors |= parent.bits | parent.ancestors


def _can_merge(unit: Unit, candidate: Unit) -> bool:
    """Whether no third unit is between the two: it would have to run both after and before the result."""
    return not any(parent.ancestors & candidate.bits for parent in unit.parents if parent is not candidate)


def _merge(a: Unit, b: Unit, units: dict[Unit, None], owner: MutableMapping[Any, Unit]) -> Unit:
    """Make one unit of two: the smaller one becomes part of the larger."""
    kept, gone = (a, b) if len(a.bindings) > len(b.bindings) else (b, a)
    del units[gone]
    kept.bindings += gone.bindings
    kept.order = min(kept.order, gone.order)
    for binding in gone.bindings:
        owner[binding.var] = kept
    for other in gone.parents:
        other.children.remove(gone)
        other.children.add(kept)
    for other in gone.children:
        other.parents.remove(gone)
        other.parents.add(kept)
    kept.parents = (kept.parents | gone.parents) - {kept, gone}
    kept.children = (kept.children | gone.children) - {kept, gone}
    kept.bits |= gone.bits
    kept.ancestors = (kept.ancestors | gone.ancestors) & ~kept.bits
    waiting = [kept]
    while waiting:  # readers of this unit are also readers of all that was merged with it
        unit = waiting.pop()
        before = unit.bits | unit.ancestors
        for child in unit.children:
            if before & ~child.ancestors:
                child.ancestors |= before
                waiting.append(child)
    return kept


def _in_order(units: list[Unit], owner: Mapping[Any, Unit], needs: Mapping[Any, list[Any]]) -> list[Unit]:
    """Topological order, otherwise that of the program; ``needs`` is what has to run before each variable."""
    waiting = {
        u: {owner[v] for b in u.bindings for v in needs[b.var] if v in owner and owner[v] is not u} for u in units
    }
    readers: dict[Unit, list[Unit]] = {u: [] for u in units}
    for unit, parents in waiting.items():
        for parent in parents:
            readers[parent].append(unit)
    ready: list[tuple[int, int]] = []
    number = {u: i for i, u in enumerate(units)}
    for unit, parents in waiting.items():
        if not parents:
            heappush(ready, (unit.order, number[unit]))
    result = []
    while ready:
        unit = units[heappop(ready)[1]]
        result.append(unit)
        for reader in readers[unit]:
            waiting[reader].discard(unit)
            if not waiting[reader]:
                heappush(ready, (reader.order, number[reader]))
    assert len(result) == len(units), "a region is not convex"
    return result


#: what a further region costs beside the bytes that cross its border, in bytes
_CALL_OF_A_REGION = 64


def why_not_fits(ns: Namespace, region: relax.Function, options: Mapping[str, Any]) -> Failure | None:
    fits, who = ns.functions.fits, f"fits of {ns.name!r}"
    assert fits is not None
    named = region.with_attr({"Codegen": ns.name, "global_symbol": "trial"})

    def ask() -> Reject | None:
        return verdict_of(who, lambda: as_reject(fits(named, dict(options)), who), around=[region])

    refusal = once(("fits", ns.name), region, options, ask)
    return None if refusal is None else Failure("fits", refusal.reason)


def longest(works: Callable[[int], bool], count: int, guess: int) -> int:
    """The largest number of first calls that work together, if more calls work less; ``guess`` is asked first."""
    good, bad = 0, count + 1
    step, probe = 1, guess if 0 < guess < count else count
    while bad - good > 1:
        if works(probe):
            good = probe
        else:
            bad = probe
        if (good and bad <= count) or not guess:
            probe = (good + bad) // 2
        else:  # on from the guess, twice as far each time
            probe = min(good + step, count) if good else max(bad - step, 1)
            step *= 2
    return good


def bytes_between(block: Block, before: Sequence[Any], after: Sequence[Any], sizes: Any) -> int:
    made = {b.var for b in before}
    return sum(type_bytes(v.ty, sizes) for v in block.inputs(after) if v in made)


def cheapest_place(most: int, crossing: Callable[[int], int]) -> int:
    """The number of first calls to cut off, at most ``most``: the cheapest border for each call that it gets done."""
    return min(range(most, 0, -1), key=lambda at: (_CALL_OF_A_REGION + crossing(at)) / at)
