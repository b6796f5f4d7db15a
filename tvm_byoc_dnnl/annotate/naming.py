"""Names of variables: unique in their function, and kept while calls become composite functions.

Reports, logs and policies name a call by the variable that holds its result. FuseOpsByPattern invents new names for
the calls that it replaces, so each composite function carries the old one until it is put back.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..handles import items
from ..relax_utils import bindings_in, is_host_function, op_calls
from ..walker import Substitute
from .composites import Alike

__all__ = ["NAME_ATTR", "restore_names", "with_unique_names"]

#: attribute of a fresh composite function: the variable that held the result of its last call
NAME_ATTR = "byoc_name"


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
            called = [(b.var, b.value.op) for b in bindings_in(func) if isinstance(b.value, relax.Call)]
            renamed = {v: type(v)(names[op], v.ty) for v, op in called if names.get(op, v.name) != v.name}
            functions[gv] = Substitute({**twins, **renamed}).function(func)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
