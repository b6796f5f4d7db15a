"""Replaces tuples by their fields, so that operators read tensors and not variables that hold tuples."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax

from .._compat import is_a, with_args
from ..handles import items

__all__ = ["spread_tuples"]


def spread_tuples(func: relax.Function, ops: Collection[str]) -> relax.Function:
    """``func`` with ``concat(t)`` written as ``concat((a, b))``, for the operators in ``ops``.

    A composite function of ``concat(t)`` would have a tuple for its parameter, and the calls that make ``a`` and ``b``
    could not be merged with it.
    """
    if not any(is_a(var.ty, relax.TupleType) for var in items(relax.analysis.bound_vars(func))):
        return func
    spread = _Spread(ops)
    func = spread.visit_expr(func)
    return relax.analysis.remove_all_unused(func) if spread.changed else func


@relax.expr_functor.mutator
class _Spread(relax.PyExprMutator):
    def __init__(self, ops: Collection[str]) -> None:
        super().__init__()
        self.changed = False
        self._ops = ops
        self._tuples: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        if isinstance(binding.value, relax.Tuple):
            self._tuples[binding.var] = binding.value
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        given = items(call.args)
        held = [is_a(a, relax.Var) and is_a(a.ty, relax.TupleType) for a in given]
        if any(held) and isinstance(call.op, tvm.ir.Op) and call.op.name in self._ops:
            self.changed = True
            args = [self._fields(a) if is_held else a for a, is_held in zip(given, held, strict=True)]
            call = with_args(call, args)
        return super().visit_call_(call)

    def _fields(self, var: Any) -> Any:
        if var in self._tuples:
            return self._tuples[var]
        fields = [relax.TupleGetItem(self.visit_expr(var), i) for i in range(len(var.ty.fields))]
        return relax.Tuple([self.builder_.emit(field, f"{var.name}_{i}") for i, field in enumerate(fields)])
