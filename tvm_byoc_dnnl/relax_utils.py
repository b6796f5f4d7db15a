"""Small readers of Relax IR that several stages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax

from ._compat import is_a
from .handles import items

__all__ = [
    "NESTED",
    "bindings_of",
    "codegen_of",
    "composite_of",
    "is_host_function",
    "is_op_call",
    "op_calls",
    "ops_of",
    "with_functions",
]

#: values with bindings of their own inside
NESTED = (relax.If, relax.Function, relax.SeqExpr)


def bindings_of(func: relax.Function) -> Iterator[tuple[Any, Any]]:
    """``(var, value)`` of every binding of a function's body, in order."""
    if isinstance(func.body, relax.SeqExpr):
        for block in items(func.body.blocks):
            for binding in items(block.bindings):
                yield binding.var, binding.value


def op_calls(func: relax.Function) -> Iterator[tuple[Any, Any]]:
    """``(var, call)`` of every binding that calls an operator."""
    for var, value in bindings_of(func):
        if is_op_call(value):
            yield var, value


def is_op_call(expr: Any) -> bool:
    """Whether it calls an operator."""
    return is_a(expr, relax.Call) and is_a(expr.op, tvm.ir.Op)


def ops_of(func: relax.Function) -> set[str]:
    """Names of the operators that a function calls, in branches and nested functions too."""
    found: set[str] = set()

    def note(expr: Any) -> None:
        if is_op_call(expr):
            found.add(expr.op.name)

    for _, value in bindings_of(func):
        note(value)
        if is_a(value, NESTED):  # a visit of every expression takes long
            relax.analysis.post_order_visit(value, note)
    return found


def _attr(func: relax.Function, key: str) -> str:
    attrs = func.attrs
    return "" if attrs is None else str(attrs.get(key, ""))


def codegen_of(func: Any) -> str:
    """Namespace that owns a partitioned function, ``""`` for any other."""
    return _attr(func, "Codegen")


def composite_of(func: Any) -> str:
    """Name of a composite function, ``""`` for any other."""
    return _attr(func, "Composite")


def is_host_function(func: Any) -> bool:
    """Whether it is a Relax function that belongs to no external compiler."""
    return isinstance(func, relax.Function) and not codegen_of(func) and not composite_of(func)


def with_functions(mod: tvm.IRModule, functions: Mapping[Any, Any]) -> tvm.IRModule:
    """A copy of ``mod`` in which ``functions`` are added or take the place of those there."""
    return tvm.IRModule({**dict(mod.functions.items()), **functions}, attrs=mod.attrs, global_infos=mod.global_infos)
