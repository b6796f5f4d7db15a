"""Regions become modules of their codegens, and the calls of regions calls of what these modules export.

TVM's RunCodegen does the same for functions with a symbol of their own that do not call themselves: it leaves the
regions of a private function as they are, and does not come back from a recursive one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ...ir.relax_utils import codegen_of, constants_in, external_modules, is_host_function
from ...ir.tvm_compat import constant_tensor
from ...ir.walker import rewrite_calls


def with_external_calls(
    mod: tvm.IRModule,
    regions: Mapping[Any, relax.Function],
    modules: Sequence[tvm.runtime.Module],
    names: Mapping[Any, str],
) -> tvm.IRModule:
    """The module without ``regions``, which are called in ``modules`` instead.

    Parameters
    ----------
    mod : IRModule
        A partitioned module.
    regions : mapping of GlobalVar to Function
        The function that was compiled.
    modules : sequence of Module
        What came of it, each with the function of its region's symbol.
    names : mapping of Constant to str
        See `name_constants`.

    Returns
    -------
    IRModule
        The modules are in the attribute ``external_mods``, and the constants in ``const_name_to_constant``, where TVM's
        linker looks for both.
    """
    symbols = {gv: str(f.attrs["global_symbol"]) for gv, f in regions.items()}

    def external(_builder: Any, call: Any, _var: Any) -> Any:
        if call.op not in symbols:
            return None
        arguments = [relax.ExternFunc(symbols[call.op]), relax.Tuple(list(call.args))]
        return relax.Call(tvm.ir.Op.get("relax.call_dps_packed"), arguments, None, [call.ty])

    functions = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    for gv, func in functions.items():
        if is_host_function(func) and not regions.keys().isdisjoint(relax.analysis.all_global_vars(func)):
            functions[gv] = rewrite_calls(func, external)
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    attrs["external_mods"] = [*external_modules(mod), *modules]
    if names:
        tensors = {name: constant_tensor(constant) for constant, name in names.items()}
        attrs["const_name_to_constant"] = {**attrs.get("const_name_to_constant", {}), **tensors}
    return tvm.IRModule(functions, global_infos=mod.global_infos).with_attrs(attrs)


def name_constants(functions: Iterable[relax.Function]) -> dict[Any, str]:
    """Names for the constants of regions, as RunCodegen gives them; one that several share keeps its last name."""
    names: dict[Any, str] = {}
    for func in functions:
        _name_constants(func, names)
    return names


def _name_constants(func: relax.Function, names: dict[Any, str]) -> None:
    prefix = f"{func.attrs['global_symbol']}_{codegen_of(func)}_const_"
    names.update((constant, f"{prefix}{count}") for count, constant in enumerate(constants_in(func.body)))
