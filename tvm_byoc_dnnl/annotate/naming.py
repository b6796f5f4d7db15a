"""Names of variables: unique in their function, and kept while calls become composite functions.

Reports, logs and policies name a call by the variable that holds its result. FuseOpsByPattern invents new names for
the calls that it replaces, so each composite function carries the old one until it is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

from .._compat import remap_var
from ..handles import items
from ..relax_utils import is_host_function
from .composites import Alike

__all__ = ["NAME_ATTR", "restore_names", "with_unique_names"]

#: attribute of a fresh composite function: the variable that held the result of its last call
NAME_ATTR = "byoc_name"


class _Renamer(relax.PyExprMutator):
    """Gives variables new names where they are bound."""

    def _new_name(self, var: Any) -> str:
        raise NotImplementedError

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


@relax.expr_functor.mutator
class _Unique(_Renamer):
    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, int] = {}

    def _new_name(self, var: Any) -> str:
        name = str(var.name)
        while name in self._taken:
            self._taken[var.name] += 1
            name = f"{var.name}_{self._taken[var.name]}"
        self._taken[name] = 0
        return name


@relax.expr_functor.mutator
class _Restored(_Renamer):
    def __init__(self, names: Mapping[Any, str], twins: Mapping[Any, Any]) -> None:
        super().__init__()
        self._names = names
        self._twins = twins
        self._pending: dict[Any, str] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        if isinstance(binding.value, relax.Call) and binding.value.op in self._names:
            self._pending[binding.var] = self._names[binding.value.op]
        super().visit_var_binding_(binding)

    def _new_name(self, var: Any) -> str:
        return self._pending.get(var, str(var.name))

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        twin = self._twins.get(call.op)
        return call if twin is None else relax.Call(twin, call.args, call.attrs, call.ty_args, call.span)


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
        first = alike.first(func, lambda gv=gv: gv)  # type: ignore[misc]
        if first is gv:
            functions[gv] = func
        else:
            twins[gv] = first
    for gv, func in functions.items() if names else ():
        if is_host_function(func):
            functions[gv] = _Restored(names, twins).visit_expr(func)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
