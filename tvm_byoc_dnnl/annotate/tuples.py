"""Replaces tuples by their fields, so that operators read tensors and not variables that hold tuples."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm import relax

from .._compat import is_a, with_args
from ..handles import items
from ..relax_utils import NESTED, bindings_of, is_op_call

__all__ = ["spread_tuples"]


def spread_tuples(func: relax.Function, ops: Collection[str]) -> relax.Function:
    """``func`` with ``concat(t)`` written as ``concat((a, b))``, for the operators in ``ops``.

    A composite function of ``concat(t)`` would have a tuple for its parameter, and the calls that make ``a`` and ``b``
    could not be merged with it.
    """
    if not any(is_a(value, NESTED) or _reads_tuple(value, ops) for _, value in bindings_of(func)):
        return func  # a visit of every expression takes long
    spread = _Spread(ops)
    func = spread.visit_expr(func)
    return relax.analysis.remove_all_unused(func) if spread.changed else func


def _is_held(expr: Any) -> bool:
    """Whether it is a variable that holds a tuple."""
    return is_a(expr, relax.Var) and is_a(expr.ty, relax.TupleType)


def _reads_tuple(value: Any, ops: Collection[str]) -> bool:
    """Whether it calls one of these operators with a variable that holds a tuple."""
    return is_op_call(value) and value.op.name in ops and any(map(_is_held, items(value.args)))


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
        if _reads_tuple(call, self._ops):
            self.changed = True
            call = with_args(call, [self._fields(a) if _is_held(a) else a for a in items(call.args)])
        return super().visit_call_(call)

    def _fields(self, var: Any) -> Any:
        if var in self._tuples:
            return self._tuples[var]
        fields = [relax.TupleGetItem(self.visit_expr(var), i) for i in range(len(var.ty.fields))]
        return relax.Tuple([self.builder_.emit(field, f"{var.name}_{i}") for i, field in enumerate(fields)])
