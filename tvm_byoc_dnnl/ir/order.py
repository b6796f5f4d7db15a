"""The order of a block's bindings: each comes behind what it reads, and behind what gives its symbols their numbers;
calls that read old values come before calls that overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.tvm_fast import ByIdentity, is_a, items
from .relax_utils import bindings_in, blocks_in, is_host_function, is_op_call, with_functions
from .walker import rewrite_blocks


def _used(binding: Any) -> list[Any]:
    value = binding.value
    if is_a(binding, relax.MatchCast):
        return items(relax.analysis.tir_vars_in_type(value.ty))
    found = items(relax.analysis.tir_vars_in_type(binding.var.ty))
    if is_a(value, relax.Call):
        args = [part for arg in items(value.args) for part in (items(arg.fields) if is_a(arg, relax.Tuple) else [arg])]
        for ty in (*items(value.ty_args), *(arg.ty for arg in args if is_a(arg, relax.ShapeExpr))):
            found += items(relax.analysis.tir_vars_in_type(ty))
        for arg in args:
            if tvm.ir.is_prim_expr(arg):
                found += items(tvm.tirx.analysis.undefined_vars(arg))
    return found


def _given(binding: Any) -> list[Any]:
    """The symbols that a binding compares with numbers, or gives these."""
    return items(relax.analysis.definable_tir_vars_in_type(binding.ty)) if is_a(binding, relax.MatchCast) else []


def symbol_constraints(bindings: Sequence[Any]) -> dict[Any, list[Any]]:
    """Variable → the earlier casts, of a dataflow block in order, that give the symbols their numbers which it uses."""
    if not any(is_a(binding, relax.MatchCast) for binding in bindings):
        return {}
    makers: dict[Any, Any] = {}  # symbol → its cast; None for those of outside
    constraints: dict[Any, list[Any]] = {}
    for binding in bindings:
        used = _used(binding)
        if before := [makers[symbol] for symbol in used if makers.setdefault(symbol, None) is not None]:
            constraints[binding.var] = list(dict.fromkeys(before))
        for symbol in _given(binding):
            makers.setdefault(symbol, binding.var)
    return constraints


def in_order(steps: Sequence[Sequence[Any]], known: Iterable[Any] = ()) -> list[Any]:
    """The bindings of steps, which stay together, as early as possible; ``known`` symbols have numbers."""
    missing = ByIdentity.of((binding.var, None) for step in steps for binding in step)
    given = {symbol: None for step in steps for binding in step for symbol in _given(binding)}
    for symbol in known:
        given.pop(symbol, None)
    ordered: list[Any] = []
    waiting: list[tuple[Sequence[Any], list[Any], list[Any]]] = []  # steps, and what they read and use
    for step in steps:
        used = [symbol for symbol in _used(step[0]) if symbol in given] if given else []
        waiting.append((step, items(relax.analysis.free_vars(step[0].value)), used))
        while ready := [
            n
            for n, (_, reads, used) in enumerate(waiting)
            if not any(var in missing for var in reads) and not any(symbol in given for symbol in used)
        ]:
            for binding in waiting.pop(ready[0])[0]:
                ordered.append(binding)
                del missing[binding.var]
                for symbol in _given(binding):
                    given.pop(symbol, None)
    assert not waiting, "bindings need each other's results"
    return ordered


def functions_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with each symbol behind the cast that gives it its number; TVM's FuseOps orders by reads alone."""
    functions = [gv for gv, f in mod.functions.items() if is_host_function(f)]
    found = [gv for gv in functions if any(is_a(b, relax.MatchCast) for b in bindings_in(mod[gv]))]
    return with_functions(mod, {gv: _ordered(mod[gv]) for gv in found}) if found else mod


def _ordered(func: relax.Function) -> relax.Function:
    known = dict.fromkeys(symbol for p in func.params for symbol in relax.analysis.tir_vars_in_type(p.ty))
    for block in blocks_in(func):
        if not is_a(block, relax.DataflowBlock):
            known |= dict.fromkeys(symbol for binding in items(block.bindings) for symbol in _given(binding))

    def rewritten(block: Any) -> Any:
        ordered = in_order([[binding] for binding in items(block.bindings)], known)
        known.update(dict.fromkeys(symbol for binding in ordered for symbol in _given(binding)))
        return relax.DataflowBlock(ordered)

    return rewrite_blocks(func, rewritten)


#: operators that overwrite arguments, those behind the first
IN_PLACE = frozenset({"relax.call_tir_inplace", "relax.call_inplace_packed"})
#: operators whose result may be the memory of their argument
_VIEWS = {*IN_PLACE, "relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"}


def _overwritten(value: Any) -> list[Any]:
    if not is_op_call(value) or value.op.name not in IN_PLACE:
        return []
    args = list(value.args[1:])
    if args and isinstance(args[0], relax.Tuple):
        args = [*args[0].fields, *args[1:]]
    return [args[int(i)] for i in value.attrs.inplace_indices if int(i) >= 0]


class WritersBetween:
    """Finds calls of a function that overwrite an argument between two other bindings."""

    def __init__(self, func: relax.Function) -> None:
        bindings = list(bindings_in(func))
        self._places = {b.var: place for place, b in enumerate(bindings)}
        self._writers = {place: b.var for place, b in enumerate(bindings) if _overwritten(b.value)}

    def first(self, variables: Iterable[Any]) -> Any:
        """The first result of such a call that is bound between the first and the last of ``variables``, or None."""
        places = [self._places[v] for v in variables if v in self._places]
        return next((var for at, var in self._writers.items() if places and min(places) < at < max(places)), None)


def _may_alias(value: Any, is_composite: bool) -> bool:
    """Whether the result may be the memory of an operand: all but new tensors of operators and of composites."""
    if is_op_call(value):
        return value.op.name in _VIEWS
    return not is_composite


def order_constraints(bindings: Sequence[Any], composites: Iterable[Any]) -> dict[Any, list[Any]]:
    """Variable → earlier variables that have to be computed before it although it does not read them.

    A call that overwrites a tensor comes behind all that read it earlier, under any name, and in front of all that read
    it later. ``composites`` are results of composite functions, which are new tensors.
    """
    if not any(_overwritten(b.value) for b in bindings):
        return {}
    fresh = set(composites)
    memories = _Memories()
    constraints: dict[Any, list[Any]] = {}
    for binding in bindings:
        var, value = binding.var, binding.value
        reads = relax.analysis.free_vars(value)
        before = [w for m in map(memories.of, reads) for w in m.writers]
        for target in _overwritten(value):
            for memory in map(memories.of, relax.analysis.free_vars(target)):
                before += memory.readers
                memory.readers, memory.writers = [], [var]
        if before := [v for v in dict.fromkeys(before) if not v.same_as(var)]:
            constraints[var] = before
        for read in reads:
            memories.of(read).readers.append(var)
            if _may_alias(value, var in fresh):
                memories.join(var, read)
    return constraints


class _Memory:
    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.readers: list[Any] = []  # since it was overwritten last
        self.writers: list[Any] = []  # which overwrote it last


class _Memories:
    def __init__(self) -> None:
        self._of: dict[Any, _Memory] = {}

    def of(self, var: Any) -> _Memory:
        if var not in self._of:
            self._of[var] = _Memory()
            self._of[var].variables.append(var)
        return self._of[var]

    def join(self, a: Any, b: Any) -> None:
        kept, gone = self.of(a), self.of(b)
        if kept is gone:
            return
        if len(kept.variables) < len(gone.variables):
            kept, gone = gone, kept
        kept.variables += gone.variables
        kept.readers += gone.readers
        kept.writers += gone.writers
        self._of.update(dict.fromkeys(gone.variables, kept))
