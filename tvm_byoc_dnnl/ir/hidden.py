"""Calls that a pass must not see: calls of a function without a meaning stand in their places while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import tvm
from tvm import relax

from .relax_utils import is_op_call, with_functions
from .tvm_compat import is_a
from .walker import rewrite_blocks

_NAME = "byoc.hidden."


def without_hidden(
    mod: tvm.IRModule,
    functions: Iterable[Any],
    sees: Callable[[Any, Any], bool],
    run: Callable[[tvm.IRModule], tvm.IRModule],
) -> tvm.IRModule:
    """The module behind a pass that sees some of the calls.

    Parameters
    ----------
    mod : IRModule
        A module of dataflow blocks.
    functions : iterable of GlobalVar
        Those in which calls are hidden.
    sees : callable
        ``sees(global variable, call)``: whether the pass sees a call of an operator. It is asked once for each, in
        order.
    run : callable
        The pass.
    """
    hidden: list[Any] = []

    def hide(gv: Any, var: Any, call: Any) -> Any:
        if not is_op_call(call) or any(is_a(a, (tvm.ir.GlobalVar, relax.ExternFunc)) for a in call.args):
            return None
        if sees(gv, call):
            return None
        hidden.append(call)
        name = relax.ExternFunc(f"{_NAME}{len(hidden) - 1}")
        return relax.Call(tvm.ir.Op.get("relax.call_pure_packed"), [name, *call.args], None, [var.ty])

    def show(_var: Any, call: Any) -> Any:
        name = str(getattr(call.args[0], "global_symbol", "")) if len(call.args) else ""
        if not name.startswith(_NAME):
            return None
        own = hidden[int(name.removeprefix(_NAME))]
        return relax.Call(own.op, list(call.args)[1:], own.attrs, own.ty_args, own.span)

    changed = {gv: _with_calls(mod[gv], partial(hide, gv)) for gv in functions}
    if not hidden:
        return run(mod)
    given = with_functions(mod, changed)
    made = run(given)
    before, after = dict(given.functions.items()), dict(made.functions.items())
    if after.keys() == before.keys() and all(func.same_as(before[gv]) for gv, func in after.items()):
        same = not made.attrs or (given.attrs is not None and made.attrs.same_as(given.attrs))
        own = dict(mod.functions.items())
        return mod if same else tvm.IRModule(own, attrs=made.attrs, global_infos=mod.global_infos)
    shown = {gv: _with_calls(f, show) for gv, f in made.functions.items() if is_a(f, relax.Function)}
    return with_functions(made, shown)


def _with_calls(func: relax.Function, replace: Callable[[Any, Any], Any]) -> relax.Function:
    """``func`` with ``replace(variable, call)``, of the same type, for calls in its dataflow blocks, if not None."""

    def rewrite(block: Any) -> Any:
        bindings, changes = list(block.bindings), False
        for place, binding in enumerate(bindings):
            if is_a(binding, relax.VarBinding) and is_a(binding.value, relax.Call):
                new = replace(binding.var, binding.value)
                if new is not None:
                    relax.expr._update_type(new, binding.value.ty)
                    bindings[place] = relax.VarBinding(binding.var, new)
                    changes = True
        return relax.DataflowBlock(bindings) if changes else block

    return rewrite_blocks(func, rewrite)
