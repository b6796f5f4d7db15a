"""Weights beside the code: one module owns the constants of all regions, and the host's large ones.

TVM's own constant loader copies them to the heap when the model is loaded, where they stay although a backend has
packed copies; above 2 GB such a file cannot be linked. The native library's module exports them as plain data, gives
views of the mapped file to backends, and releases their pages when a backend no longer needs them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..core import _native
from ..ir.relax_utils import constants_in, external_modules, is_host_function
from ..ir.tvm_compat import constant_tensor, dtype_of, is_constant
from ..ir.walker import rewrite_calls_in
from ..regions.cost import type_bytes

#: From this size on a constant of the host is read from the mapped file, by one call of a packed function, which is
#: nothing beside a kernel that reads so much; below it TVM's VM keeps a copy.
_HOST_BYTES = 1 << 16
_GETTER = "byoc_weight_{}"


@tvm.transform.module_pass(opt_level=0, name="OwnWeights")
def OwnWeights(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: constants go into one weights module; without the native library they stay with TVM.

    To be run where the host's constants are arguments of calls of PrimFuncs, behind RunCodegen and fusion.
    """
    if not _native.available():
        return mod
    mod, host = _lift_host_constants(mod)
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    regions: dict[str, list[str]] = {}
    owned: list[tvm.runtime.Module] = []
    others: list[tvm.runtime.Module] = []
    for module in external_modules(mod):
        wanted = _wanted_constants(module)
        (owned if wanted else others).append(module)
        regions |= wanted
    if not regions and not host:
        return mod
    constants = dict(attrs.get("const_name_to_constant", {}).items())
    names = sorted({name for wanted in regions.values() for name in wanted})
    tensors = [constants.pop(name) for name in names] + list(host.values())
    create = _native.function("tvm_byoc_dnnl.WeightsModuleCreate")
    getters = {getter: getter for getter in host}
    weights = create([*names, *host], tensors, regions, getters, owned)
    return mod.with_attrs({"external_mods": [weights, *others], "const_name_to_constant": constants})


@tvm.transform.module_pass(opt_level=0, name="OwnWeightsUnlessSource")
def OwnWeightsUnlessSource(mod: tvm.IRModule, context: Any) -> tvm.IRModule:
    """Pass: `OwnWeights`, for modules that need the native library anyway."""
    serialised = [m for m in external_modules(mod) if m.is_binary_serializable() and not m.is_compilation_exportable()]
    return OwnWeights(mod) if serialised else mod


def _wanted_constants(module: tvm.runtime.Module) -> dict[str, list[str]]:
    """Symbol and constants' names of a region's module, as TVM's constant loader asks for them; {} if it has none."""
    if module.kind == "c":
        return {}
    if not (module.implements_function("get_symbol") and module.implements_function("get_const_vars")):
        return {}
    names = [str(name) for name in module["get_const_vars"]()]
    return {str(module["get_symbol"]()): names} if names else {}


def _lift_host_constants(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """The module with its large constants returned by packed functions, and what those return."""
    tensors: dict[str, tvm.runtime.Tensor] = {}
    getters: dict[Any, str] = {}

    def lifted(bb: relax.BlockBuilder, arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([lifted(bb, field) for field in arg.fields])
        if not is_constant(arg) or _bytes_of(arg.ty) < _HOST_BYTES:
            return arg
        tensor = constant_tensor(arg)
        getter = getters.setdefault(tensor, _GETTER.format(len(getters)))
        tensors[getter] = tensor
        return bb.emit(relax.op.call_pure_packed(getter, ty_args=arg.ty), "weight")

    def with_lifted(bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
        """A call with large constants replaced; one that is returned stays, because the caller may write to it."""
        if not any(_bytes_of(constant.ty) >= _HOST_BYTES for constant in constants_in(call)):
            return None
        return relax.Call(call.op, [lifted(bb, arg) for arg in call.args], call.attrs, call.ty_args, call.span)

    hosts = [gv for gv, f in mod.functions.items() if is_host_function(f)]
    changed = rewrite_calls_in(mod, hosts, with_lifted)
    return (changed, tensors) if tensors else (mod, {})


def _bytes_of(ty: Any) -> int:
    return type_bytes(ty) if tvm.runtime.DataType(dtype_of(ty)).bits % 8 == 0 else 0
