"""The code of TVM's own in a model: one function that nobody calls, and C as the host's code.

Without any PrimFunc TVM links an empty C source instead of LLVM code, and then needs a C++ compiler and seconds to load
the model. Only an exported file needs that function, because TVM reads the target of the file from LLVM's code; a model
that stays in the process is built sooner without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import te

from ..vendors.hooks.c_integers import wrap_integers
from ..vendors.hooks.c_source import c_source_module, complete_c

_SYMBOL = re.compile(r"^TVM_DLL int32_t __tvm_ffi_(\w+)\(", re.M)
_HOST_FUNCTION = "byoc_host_anchor"


def anchor_host_code(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with such a function, if it has no PrimFunc."""
    if any(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values()):
        return mod
    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    mod[_HOST_FUNCTION] = _function()
    return mod


def drop_empty_source(module: tvm.runtime.Module) -> tvm.runtime.Module | None:
    """Remove the empty C source from an executable; the module that it was a part of, if there was one."""
    for parent in module._collect_from_import_tree(lambda part: any(map(_is_empty_source, part.imports))):
        set_imports(parent, [part for part in parent.imports if not _is_empty_source(part)])
        return parent
    return None


@tvm.transform.module_pass(opt_level=0, name="WrapIntegers")
def WrapIntegers(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: integers of TVM's functions wrap as their dtype says, where they become C; see `complete_host_c`."""
    return wrap_integers(mod)


def complete_host_c(module: tvm.runtime.Module) -> None:
    """Let the C that TVM wrote for an executable contain all that it uses, behind `WrapIntegers`."""
    for parent in module._collect_from_import_tree(lambda part: any(m.kind == "c" for m in part.imports)):
        set_imports(parent, [_completed(m) if m.kind == "c" else m for m in parent.imports])


def _completed(module: tvm.runtime.Module) -> tvm.runtime.Module:
    source = module.inspect_source()
    if (complete := complete_c(source)) == source:  # a vendor's own, or the empty one
        return module
    return c_source_module(complete, list(dict.fromkeys(_SYMBOL.findall(source))))


@contextmanager
def with_host_code(parent: tvm.runtime.Module, target: tvm.target.Target) -> Iterator[None]:
    """Inside, the module has LLVM code for ``target`` where the empty C source was."""
    rest = list(parent.imports)
    set_imports(parent, [tvm.tirx.build(tvm.IRModule({_HOST_FUNCTION: _function()}), target=target), *rest])
    try:
        yield
    finally:
        set_imports(parent, rest)


def _is_empty_source(module: tvm.runtime.Module) -> bool:
    return module.kind == "c" and not module.inspect_source().strip("; \n")


def _function() -> tvm.tirx.PrimFunc:
    x = te.placeholder((1,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((1,), lambda i: x[i], name="y")])
    return func.with_attr("global_symbol", _HOST_FUNCTION)


def set_imports(module: tvm.runtime.Module, parts: list[tvm.runtime.Module]) -> None:
    """Give a module these imports in place of those that it has."""
    module.clear_imports()
    for part in parts:
        module.import_module(part)
