"""Regions become modules of their codegens, and the calls of regions calls of what these modules export.

TVM's RunCodegen does the same for functions with a symbol of their own that do not call themselves: it leaves the
regions of a private function as they are, and does not come back from a recursive one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from .._compat import constant_tensor, is_constant
from ..errors import UnsupportedError
from ..relax_utils import codegen_of, is_host_function

__all__ = ["run_external_codegens"]


def run_external_codegens(mod: tvm.IRModule, options: Mapping[str, Mapping[str, Any]]) -> tvm.IRModule:
    """Run ``relax.ext.<namespace>`` once per namespace, with all its regions.

    Parameters
    ----------
    mod : IRModule
        A partitioned module; one without regions comes back as it is.
    options : mapping
        Namespace → what its codegen gets as options.

    Returns
    -------
    IRModule
        Without regions. The modules are in the attribute ``external_mods``, and the constants in
        ``const_name_to_constant``, where TVM's linker looks for both.
    """
    regions = {gv: f for gv, f in mod.functions.items() if codegen_of(f) and isinstance(f, relax.Function)}
    if not regions:
        return mod
    names: dict[Any, str] = {}
    for func in regions.values():
        _name_constants(func, names)
    made: list[tvm.runtime.Module] = []
    for compiler in dict.fromkeys(map(codegen_of, regions.values())):
        codegen = tvm.get_global_func(f"relax.ext.{compiler}", allow_missing=True)
        if codegen is None:
            raise UnsupportedError(f"{compiler!r} has registered no codegen")
        own = [f for f in regions.values() if codegen_of(f) == compiler]
        made += codegen(tvm_ffi.convert(own), tvm_ffi.convert(dict(options.get(compiler, {}))), tvm_ffi.convert(names))
    calls = _Calls({gv: str(f.attrs["global_symbol"]) for gv, f in regions.items()})
    functions = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    for gv, func in functions.items():
        if is_host_function(func) and not regions.keys().isdisjoint(relax.analysis.all_global_vars(func)):
            functions[gv] = calls.visit_expr(func)
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    attrs["external_mods"] = [*attrs.get("external_mods", ()), *made]
    if names:
        tensors = {name: constant_tensor(constant) for constant, name in names.items()}
        attrs["const_name_to_constant"] = {**attrs.get("const_name_to_constant", {}), **tensors}
    return tvm.IRModule(functions, global_infos=mod.global_infos).with_attrs(attrs)


def _name_constants(func: relax.Function, names: dict[Any, str]) -> None:
    """Name the constants of a region as RunCodegen does; one that several regions share keeps its last name."""
    prefix, count = f"{func.attrs['global_symbol']}_{codegen_of(func)}_const_", 0

    def note(expr: Any) -> None:
        nonlocal count
        if is_constant(expr):
            names[expr] = f"{prefix}{count}"
            count += 1

    relax.analysis.post_order_visit(func.body, note)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, symbols: Mapping[Any, str]) -> None:
        super().__init__()
        self._symbols = symbols

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        symbol = self._symbols.get(call.op)
        if symbol is None:
            return call
        arguments = [relax.ExternFunc(symbol), relax.Tuple(list(call.args))]
        return relax.Call(tvm.ir.Op.get("relax.call_dps_packed"), arguments, None, [call.ty])
