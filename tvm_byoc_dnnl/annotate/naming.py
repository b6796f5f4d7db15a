"""Names of variables: unique in their function, and kept while calls become composite functions.

Reports, logs and policies name a call by the variable that holds its result. FuseOpsByPattern invents new names for
the calls that it replaces, so each composite function carries the old one until it is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .._compat import remap_var
from ..handles import ByIdentity, items
from ..relax_utils import is_host_function, op_calls
from .composites import Alike

__all__ = ["NAME_ATTR", "restore_names", "with_unique_names"]

#: attribute of a fresh composite function: the variable that held the result of its last call
NAME_ATTR = "byoc_name"


@relax.expr_functor.mutator
class _Unique(relax.PyExprMutator):
    """Gives every variable a name of its own where it is bound."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, int] = {}

    def visit_var_def_(self, var: Any) -> Any:
        return self._renamed(var, relax.Var)

    def visit_dataflow_var_def_(self, var: Any) -> Any:
        return self._renamed(var, relax.DataflowVar)

    def _renamed(self, var: Any, make: Callable[[str, Any], Any]) -> Any:
        name = self._new_name(var)
        if name == var.name:
            return var
        new = make(name, var.ty)
        remap_var(self, var, new)
        return new

    def _new_name(self, var: Any) -> str:
        name = str(var.name)
        while name in self._taken:
            self._taken[var.name] += 1
            name = f"{var.name}_{self._taken[var.name]}"
        self._taken[name] = 0
        return name


class _Restored:
    """Gives variables their names back, and calls of equal composites one callee; every expression keeps its type."""

    def __init__(self, names: Mapping[Any, str], twins: Mapping[Any, Any]) -> None:
        self._names = names
        self._twins = twins
        self._renamed: ByIdentity[Any] = ByIdentity()  # variable → the one in its place

    def function(self, func: relax.Function) -> relax.Function:
        """The function with these names."""
        return relax.Function(func.params, self._of(func.body), func.ret_ty, func.is_pure, func.attrs, func.span)

    def _binding(self, binding: Any) -> Any:
        var, old = binding.var, binding.value
        value = self._of(old)
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(var, value, binding.ty)
        name = self._names.get(old.op) if isinstance(old, relax.Call) else None
        if name is None or name == var.name:
            return binding if value is old else relax.VarBinding(var, value)
        new = self._renamed[var] = type(var)(name, var.ty)
        return relax.VarBinding(new, value)

    def _of(self, expr: Any) -> Any:
        """An expression with the new variables; the same object where nothing in it is new."""
        if isinstance(expr, relax.Var):
            return self._renamed.get(expr, expr)
        if isinstance(expr, relax.Call):
            old = [expr.op, *items(expr.args)]
            op, *args = new = [self._twins.get(old[0]) or self._of(old[0]), *map(self._of, old[1:])]
            return (
                _typed(relax.Call(op, args, expr.attrs, expr.ty_args, expr.span), expr) if _differ(old, new) else expr
            )
        if isinstance(expr, relax.Tuple):
            old = items(expr.fields)
            new = [self._of(field) for field in old]
            return relax.Tuple(new) if _differ(old, new) else expr
        if isinstance(expr, relax.TupleGetItem):
            tuple_value = expr.tuple_value
            new = self._of(tuple_value)
            return expr if new is tuple_value else relax.TupleGetItem(new, expr.index)
        if isinstance(expr, relax.SeqExpr):
            blocks = [type(block)([self._binding(b) for b in items(block.bindings)]) for block in items(expr.blocks)]
            return _typed(relax.SeqExpr(blocks, self._of(expr.body)), expr)
        if isinstance(expr, relax.If):
            branches = [self._of(branch) for branch in (expr.true_branch, expr.false_branch)]
            return _typed(relax.If(self._of(expr.cond), *branches, expr.span), expr)
        return self.function(expr) if isinstance(expr, relax.Function) else expr


def _typed(expr: Any, like: Any) -> Any:
    """An expression that stands for another one, with the type of that; one of fields has a type anyway."""
    relax.expr._update_type(expr, like.ty)
    return expr


def _differ(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return any(a is not b for a, b in zip(old, new, strict=True))


def with_unique_names(func: relax.Function) -> relax.Function:
    """``func`` with every variable named differently."""
    names = [var.name for var in items(relax.analysis.bound_vars(func))]
    return func if len(set(names)) == len(names) else _Unique().visit_expr(func)


def restore_names(mod: tvm.IRModule) -> tvm.IRModule:
    """Give the results of composite functions the names that `NAME_ATTR` remembers, and let equal composites be one."""
    names: dict[Any, str] = {}
    twins: dict[Any, Any] = {}
    functions: dict[Any, Any] = {}
    alike = Alike()
    for gv, func in mod.functions.items():
        if func.attrs is None or NAME_ATTR not in func.attrs:
            functions[gv] = func
            continue
        names[gv] = str(func.attrs[NAME_ATTR])
        func = func.without_attr(NAME_ATTR)
        first = alike.first(func, (call for _, call in op_calls(func)), lambda gv=gv: gv)  # type: ignore[misc]
        if first is gv:
            functions[gv] = func
        else:
            twins[gv] = first
    for gv, func in functions.items() if names else ():
        if is_host_function(func):
            functions[gv] = _Restored(names, twins).function(func)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
