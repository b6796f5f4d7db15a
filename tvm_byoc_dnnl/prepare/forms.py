"""The forms of expressions, quickly: ``isinstance`` on TVM's classes would take most of a sweep's time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..core.tvm_fast import is_subclass, items
from ..ir.tvm_compat import analyzer, is_constant

_FORMS = {
    "call": relax.Call,
    "var": relax.Var,
    "tuple": relax.Tuple,
    "item": relax.TupleGetItem,
    "shape": relax.ShapeExpr,
    "branch": (relax.If, relax.Function, relax.SeqExpr),
}
_COMPOUND = ("call", "tuple", "item")  # those of values that read others


@cache
def _form_of_class(kind: Any) -> str:
    return next((form for form, classes in _FORMS.items() if is_subclass(kind, classes)), "")


def form_of(value: Any) -> str:
    """The form of an expression: a key of `_FORMS`, empty for any other."""
    kind: Any = type(value)
    return _form_of_class(kind)


def kind_of(value: Any) -> str:
    """The key by which rules are found."""
    if form_of(value) == "call":
        return value.op.name if type(value.op) is tvm.ir.Op else ""
    return type(value).__name__


def is_atom(value: Any) -> bool:
    """Whether a value may stand for a variable wherever that is read."""
    return form_of(value) in ("var", "shape") or is_constant(value)


def is_compound(value: Any) -> bool:
    """Whether a value reads others, and has no scope of its own."""
    return form_of(value) in _COMPOUND


def is_simple(value: Any) -> bool:
    """Whether a bound value has no scope of its own (no branches, no local function)."""
    return is_compound(value) or is_atom(value)


def is_droppable(binding: Any) -> bool:
    """Whether a binding without readers may go: a calculation inside of a dataflow block."""
    return type(binding) is relax.VarBinding and type(binding.var) is relax.DataflowVar and is_simple(binding.value)


def reads_of(value: Any) -> list[Any]:
    """Variables that a value reads, once per occurrence."""
    form = form_of(value)
    if form == "var":
        return [value]
    if form == "call":
        callee = [value.op] if form_of(value.op) == "var" else []
        return callee + [read for arg in items(value.args) for read in reads_of(arg)]
    if form == "tuple":
        return [read for field in items(value.fields) for read in reads_of(field)]
    if form == "item":
        return reads_of(value.tuple_value)
    return list(relax.analysis.free_vars(value)) if form == "branch" else []


def equal_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are surely equal; ``n + p`` is ``p + n``."""
    if len(a) != len(b):
        return False
    return all(
        x == y
        if isinstance(x, int) and isinstance(y, int)
        else tvm_ffi.structural_equal(x, y)
        or (not isinstance(x, int) and not isinstance(y, int) and analyzer().can_prove_equal(x, y))
        for x, y in zip(a, b, strict=True)
    )
