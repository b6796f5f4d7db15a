"""The way back: calls of composite functions, and of regions, become what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ..relax_utils import bindings_of

__all__ = ["Body", "inline_calls"]


@dataclass(frozen=True)
class Body:
    """What takes the place of a call: the body of ``func``, in which ``callees`` may have other global variables."""

    func: relax.Function
    callees: Mapping[Any, Any] = field(default_factory=dict)


def _no_local_functions(func: relax.Function) -> Any:
    raise ValueError(f"a local function in a body to inline, and nobody who takes it:\n{func}")


def inline_calls(
    func: relax.Function, bodies: Mapping[Any, Body], lift: Callable[[relax.Function], Any] = _no_local_functions
) -> relax.Function:
    """Replace calls by bodies.

    Parameters
    ----------
    func : relax.Function
        The caller.
    bodies : mapping of Var to Body
        Variable that holds the result of a call in a dataflow block → what to put in its place. The last call of the
        body is bound to that variable, the others keep the names that they have in the body where those are free.
    lift : callable, optional
        ``lift(function) -> GlobalVar``: makes a local function of a body (a region's composite) a global one.
    """
    return _Inliner(bodies, lift, {v.name for v in relax.analysis.all_vars(func)}).visit_expr(func)


@relax.expr_functor.mutator
class _Inliner(relax.PyExprMutator):
    def __init__(self, bodies: Mapping[Any, Body], lift: Callable[[relax.Function], Any], taken: set[str]) -> None:
        super().__init__()
        self._bodies = bodies
        self._lift = lift
        self._taken = taken

    def visit_var_binding_(self, binding: Any) -> None:
        body = self._bodies.get(binding.var)
        if body is None:
            super().visit_var_binding_(binding)
            return
        args = [self.visit_expr(a) for a in binding.value.args]
        func = body.func.bind_params(dict(zip(body.func.params, args, strict=True)))  # the symbols in their types, too
        values = dict(body.callees)
        result = func.body.body
        for var, value in bindings_of(func):
            if isinstance(value, relax.Function):
                values[var] = self._lift(value)
                continue
            if var.same_as(result):
                values[var] = binding.var
            else:
                values[var] = relax.DataflowVar(self._free_name(var.name), var.ty)
            self._emit(values[var], _substitute(value, values))
        if not any(var.same_as(result) for var, _ in bindings_of(func)):
            self._emit(binding.var, _substitute(result, values))

    def _emit(self, var: Any, value: Any) -> None:
        self.builder_.emit_normalized(relax.VarBinding(var, self.builder_.normalize(value)))

    def _free_name(self, name: str) -> str:
        number, free = 0, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free


def _substitute(expr: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(expr, relax.Var):
        return values.get(expr, expr)
    if isinstance(expr, relax.Call):
        args = [_substitute(a, values) for a in expr.args]
        return relax.Call(values.get(expr.op, expr.op), args, expr.attrs, expr.ty_args, expr.span)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_substitute(f, values) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_substitute(expr.tuple_value, values), expr.index)
    return expr
