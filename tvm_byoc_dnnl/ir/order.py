"""The order of a block's bindings: each comes behind what it reads, and behind what gives its symbols their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.tvm_fast import ByIdentity, items
from .relax_utils import bindings_in, blocks_in, is_host_function, with_functions
from .tvm_compat import is_a
from .walker import rewrite_blocks


def _used(binding: Any) -> list[Any]:
    """The symbols whose numbers a binding needs."""
    value = binding.value
    if is_a(binding, relax.MatchCast):
        return items(relax.analysis.tir_vars_in_type(value.ty))
    found = items(relax.analysis.tir_vars_in_type(binding.var.ty))
    if is_a(value, relax.Call):
        for ty in (*items(value.ty_args), *(arg.ty for arg in items(value.args) if is_a(arg, relax.ShapeExpr))):
            found += items(relax.analysis.tir_vars_in_type(ty))
        for arg in items(value.args):
            if tvm.ir.is_prim_expr(arg):
                found += items(tvm.tirx.analysis.undefined_vars(arg))
    return found


def _given(binding: Any) -> list[Any]:
    """The symbols that a binding compares with numbers, or gives these."""
    return items(relax.analysis.definable_tir_vars_in_type(binding.ty)) if is_a(binding, relax.MatchCast) else []


def symbol_constraints(bindings: Sequence[Any]) -> dict[Any, list[Any]]:
    """Variable → the earlier casts that give the symbols their numbers which it uses.

    Parameters
    ----------
    bindings : sequence of Binding
        A dataflow block, in order.
    """
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
    """The bindings of steps, each step as early as what it needs allows, and not in front of earlier ones.

    Parameters
    ----------
    steps : sequence of sequence of Binding
        What stays together; the first binding of a step reads all that the step reads.
    known : iterable of Var
        Symbols that have their numbers before the block.
    """
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
    """The module with each symbol of a block behind the cast that gives it its number.

    TVM's FuseOps orders the bindings of a block by what they read alone.
    """
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
