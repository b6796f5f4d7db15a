"""Adds PrimFuncs to a module: equal ones are kept once, and the calls of them are changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvm import relax, tirx
from tvm_ffi import StructuralKey

from ...ir.relax_utils import is_op_call
from ...ir.walker import rewrite_calls

#: the pattern kind by which FuseOps knows a function that it must not change
_OPAQUE = 8


class KernelTable:
    """PrimFuncs by name; a function that is equal to an earlier one gets the earlier one's name.

    Parameters
    ----------
    taken : iterable of str
        Names that are not free.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.functions: dict[str, tirx.PrimFunc] = {}
        self._taken = set(taken)
        self._names: dict[StructuralKey, str] = {}

    def add(self, func: tirx.PrimFunc, hint: str) -> str:
        """The name of ``func``, which is ``hint`` where that is free."""
        func = func.without_attr("global_symbol").without_attr("Codegen")
        if (key := StructuralKey(func)) in self._names:
            return self._names[key]
        name, number = hint, 0
        while name in self._taken:
            name, number = f"{hint}_{number}", number + 1
        self._taken.add(name)
        self.functions[name] = func
        self._names[key] = name
        return name


def opaque(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc that TVM's fusion does not change, unless its maker allows it: it may be scheduled already."""
    return func if func.attrs and "op_pattern" in func.attrs else func.with_attr("op_pattern", _OPAQUE)


def redirect_calls(func: relax.Function, callees: Mapping[Any, Any]) -> relax.Function:
    """``func`` with each ``call_tir`` of certain functions calling another one.

    Parameters
    ----------
    func : relax.Function
        Where the calls are.
    callees : mapping of GlobalVar to GlobalVar or str
        The new callee; a string is the symbol of a function in a runtime module.
    """
    if callees.keys().isdisjoint(relax.analysis.all_global_vars(func)):
        return func

    def redirected(_builder: Any, call: Any, _var: Any) -> Any:
        callee = callees.get(call.args[0]) if is_op_call(call) and call.op.name == "relax.call_tir" else None
        if callee is None:
            return None
        if isinstance(callee, str):
            (ty,) = call.ty_args
            types = list(ty.fields) if isinstance(ty, relax.TupleType) else ty
            return relax.op.call_dps_packed(callee, call.args[1], types)
        return relax.Call(call.op, [callee, *call.args[1:]], call.attrs, call.ty_args, call.span)

    return rewrite_calls(func, redirected)
