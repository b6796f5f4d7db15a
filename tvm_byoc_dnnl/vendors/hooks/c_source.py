"""C out of PrimFuncs, by TVM's own passes and generator."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tvm
from tvm import tirx

from ...ir.tvm_compat import C_ROUNDS_TO_EVEN, dtype_of
from .c_integers import with_definitions, wrap_integers

# TVM defines these in every C file that it writes, and two such files would not link into one library.
_WEAK = "".join(f"#pragma weak {symbol}\n" for symbol in ("__tvm_ffi__library_ctx", "__tvm_ffi_main"))
# `float* x = ((float*)((float*)(((DLTensor*)x_handle)[0].data)));`, as the generator writes a buffer argument.
_ARGUMENT = re.compile(r"^( +\w+\*) (\w+ = \(.*\(\(DLTensor\*\)\w+\)\[0\]\.data\)+;)$", re.M)

# The generator writes infinities like this, which is not C.
_INFINITY = re.compile(r"\binff?\b")

# Functions of C's library for which TVM's C target has no rule, or a wrong one.
_LIBRARY = {"tirx.fabs": {"float32": "fabsf", "float64": "fabs"}}
_WRONG = {} if C_ROUNDS_TO_EVEN else {"tirx.round": {"float32": "nearbyintf", "float64": "nearbyint"}}
_LIBRARY.update(_WRONG)


def _call_library(call: tvm.ir.Call) -> tvm.ir.Call | None:
    name = _LIBRARY[call.op.name].get(dtype_of(call.ty))
    return None if name is None else tirx.call_pure_extern(call.ty, name, *call.args)


for _op in _LIBRARY:
    # the C target decides by this attribute
    if _op in _WRONG or tvm.ir.Op.get(_op).get_attr("default.FLowerIntrinsic") is None:
        tvm.ir.register_op_attr(_op, "c.FLowerIntrinsic", _call_library)


def lower_tir(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """TVM's TIR pipeline for a host target, up to the code generator; for C, integers wrap (`wrap_integers`)."""
    pipeline, finalize_host, _ = tirx.get_default_tir_pipeline(target)
    if str(target.kind.name) == "c":  # before TVM simplifies, for which a sum of integers does not overflow
        mod = wrap_integers(mod)
    mod = finalize_host()(pipeline(tirx.transform.BindTarget(target)(mod)))
    for gv, func in mod.functions.items():  # a single function would be exported as the library's `main` too
        mod.update_func(gv, func.without_attr("tirx.is_entry_func"))
    return mod


def generate_c(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """C source of lowered PrimFuncs, one exported function each, that links beside other files of its kind.

    Integers wrap in every expression as their dtype says (int8: 127 + 1 is -128), where C would compute with ``int``;
    a quotient by 0 is 0, as NumPy has it.

    Parameters
    ----------
    mod : IRModule
        PrimFuncs behind `lower_tir`. Their buffers do not overlap, as TVM assumes of PrimFuncs elsewhere.
    target : Target
        Of kind ``c``.
    """
    source = tvm.get_global_func("target.build.c")(wrap_integers(mod), target).inspect_source()
    return _WEAK + _ARGUMENT.sub(r"\1 __restrict__ \2", complete_c(source))


def complete_c(source: str) -> str:
    """What TVM's generator wrote, as C that a compiler takes: with infinities, and the functions that integers need."""
    return _INFINITY.sub("INFINITY", with_definitions(source))


def c_module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """`generate_c` as a module whose source is compiled when the executable is run or exported."""
    names = [gv.name_hint for gv in mod.get_global_vars()]
    return c_source_module(generate_c(mod, target), names)


def c_source_module(source: str, symbols: Sequence[str], constant_names: Sequence[str] = ()) -> tvm.runtime.Module:
    """A runtime module of C source, which is compiled when the model is run or exported.

    Parameters
    ----------
    source : str
        C that is C++ as well: TVM's compiler driver is usually g++.
    symbols : sequence of str
        The functions that it defines as ``__tvm_ffi_<symbol>``; a region's ``global_symbol`` among them.
    constant_names : sequence of str
        Constants of the region that ``__tvm_ffi___init_<symbol>`` is to get before the first call.
    """
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    return create(source, "c", list(symbols), list(constant_names))
