"""C out of lowered PrimFuncs, by TVM's own generator."""

from __future__ import annotations

import tvm

__all__ = ["c_module", "generate_c"]

# TVM defines these in every C file that it writes, and two such files would not link into one library.
_WEAK = "".join(f"#pragma weak {symbol}\n" for symbol in ("__tvm_ffi__library_ctx", "__tvm_ffi_main"))


def generate_c(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """C source of lowered PrimFuncs, one exported function each, that links beside other files of its kind.

    Parameters
    ----------
    mod : IRModule
        PrimFuncs behind TVM's TIR pipeline.
    target : Target
        Of kind ``c``.
    """
    return _WEAK + tvm.get_global_func("target.build.c")(mod, target).inspect_source()


def c_module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """`generate_c` as a module whose source is compiled when the executable is run or exported."""
    names = [gv.name_hint for gv in mod.get_global_vars()]
    return tvm.get_global_func("runtime.CSourceModuleCreate")(generate_c(mod, target), "c", names, [])
