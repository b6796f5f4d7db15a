"""Functions before they are searched: tuples replaced by their fields, so that operators read tensors and not variables
that hold tuples, and variables whose names differ."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from tvm import relax

from ...core.tvm_fast import items
from ...ir.relax_utils import NESTED, bindings_in, bindings_of, is_op_call
from ...ir.tvm_compat import is_a, with_args
from ...ir.walker import Substitute, rewrite_calls

__all__ = ["spread_tuples", "with_unique_names"]


def spread_tuples(func: relax.Function, ops: Collection[str]) -> relax.Function:
    """``func`` with ``concat(t)`` written as ``concat((a, b))``, for the operators in ``ops``.

    A composite function of ``concat(t)`` would have a tuple for its parameter, and the calls that make ``a`` and ``b``
    could not be merged with it.
    """
    if not any(is_a(value, NESTED) or _reads_tuple(value, ops) for _, value in bindings_of(func)):
        return func  # a visit of every expression takes long
    changed = rewrite_calls(func, partial(_spread, ops))
    return func if changed is func else relax.analysis.remove_all_unused(changed)


def _is_held(expr: Any) -> bool:
    """Whether it is a variable that holds a tuple."""
    return is_a(expr, relax.Var) and is_a(expr.ty, relax.TupleType)


def _reads_tuple(value: Any, ops: Collection[str]) -> bool:
    """Whether it calls one of these operators with a variable that holds a tuple."""
    return is_op_call(value) and value.op.name in ops and any(map(_is_held, items(value.args)))


def _spread(ops: Collection[str], bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
    if not _reads_tuple(call, ops):
        return None
    return with_args(call, [_fields(bb, arg) if _is_held(arg) else arg for arg in items(call.args)])


def _fields(bb: relax.BlockBuilder, var: Any) -> Any:
    known = bb.lookup_binding(var)
    if isinstance(known, relax.Tuple):
        return known
    fields = [bb.emit(relax.TupleGetItem(var, i), f"{var.name}_{i}") for i in range(len(var.ty.fields))]
    return relax.Tuple(fields)


def with_unique_names(func: relax.Function) -> relax.Function:
    """``func`` with every variable named differently."""
    bound = [*items(func.params)]
    for binding in bindings_in(func):
        value = binding.value
        bound += [*items(value.params), binding.var] if isinstance(value, relax.Function) else [binding.var]
    taken: dict[str, int] = {}
    renamed: dict[Any, Any] = {}
    for var in bound:
        name = given = str(var.name)
        while name in taken:
            taken[given] += 1
            name = f"{given}_{taken[given]}"
        taken[name] = 0
        if name != given:
            renamed[var] = type(var)(name, var.ty)
    return Substitute(renamed).function(func) if renamed else func
