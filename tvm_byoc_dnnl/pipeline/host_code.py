"""The code of TVM's own in a model: one function that nobody calls, C as the host's code, and object files in memory.

Without any PrimFunc TVM links an empty C source instead of LLVM code, and then needs a C++ compiler and seconds to load
the model. Only an exported file needs that function, because TVM reads the target of the file from LLVM's code.

TVM sets the first value of a reduction in the first step of its loop. Without elements there is no step, and the result
would be what lay in the memory: `StartReductions`.

Where LLVM cannot write a file to its end, it ends the process. So it writes to memory, and where even files in memory
have a limit, it returns assembly as text.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, te, tirx
from tvm.support import cc
from tvm_ffi import structural_map, structural_walk

from ..core import _native
from ..core.errors import ExportError
from ..core.files import workspace
from ..core.tvm_fast import is_a, items
from ..ir.relax_utils import with_functions
from ..vendors.c_source import c_source_module, complete_c, wrap_integers

_SYMBOL = re.compile(r"^TVM_DLL int32_t __tvm_ffi_(\w+)\(", re.M)
_HOST_FUNCTION = "byoc_host_anchor"


@tvm.transform.module_pass(opt_level=0, name="AnchorHostCode")
def AnchorHostCode(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: a module without any PrimFunc gets such a function."""
    if any(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values()):
        return mod
    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    mod[_HOST_FUNCTION] = _function()
    return mod


def drop_empty_source(module: tvm.runtime.Module) -> tvm.runtime.Module | None:
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
    module.clear_imports()
    for part in parts:
        module.import_module(part)


@tvm.transform.module_pass(opt_level=0, name="StartReductions")
def StartReductions(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Set the first values of reductions whose number of elements only a call knows in front of their loops."""
    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc) and _is_open(f)}
    return with_functions(mod, {gv: _started(f) for gv, f in functions.items()}) if functions else mod


def _is_open(func: tirx.PrimFunc) -> bool:
    root, found = getattr(func.body, "block", None), []  # what is written as statements has none of this name
    if root is None or root.name_hint != "root":
        return False

    def look(axis: tirx.IterVar) -> None:
        if _is_reduced(axis) and not is_a(axis.dom.extent, tirx.IntImm):
            found.append(axis)

    structural_walk(func.body, [(tirx.IterVar, look)])
    return bool(found)


def _is_reduced(axis: tirx.IterVar) -> bool:
    return axis.iter_type == tirx.IterVar.CommReduce


def _started(func: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(func)
    waiting = [schedule.get_sblock("root")]
    while waiting:
        block = waiting.pop()
        waiting += schedule.get_child_blocks(block)  # a block of its own has loops whose lengths are read
        made, loops = schedule.get(block), schedule.get_loops(block)
        reduced = [i for i, axis in enumerate(items(made.iter_vars)) if _is_reduced(axis)]
        if made.init is None or len(loops) not in (len(made.iter_vars), len(reduced)):  # a schedule of the user's
            continue
        if any(not is_a(made.iter_vars[i].dom.extent, tirx.IntImm) for i in reduced):
            schedule.decompose_reduction(block, loops[reduced[0] if len(loops) > len(reduced) else 0])
    return schedule.mod["main"]


@tvm.transform.module_pass(opt_level=0, name="DropSequenceMarks")
def DropSequenceMarks(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Remove the mark that TVM puts around statements in sequence: LLVM's code generator warns of each on the standard
    error, and does nothing else with it."""

    def unmarked(statement: tirx.AttrStmt) -> Any:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc)}
    return with_functions(
        mod,
        {gv: f.with_body(structural_map(f.body, [(tirx.AttrStmt, unmarked)])) for gv, f in functions.items()},
    )


_LLVM = "llvm"
#: LLVM names source files in the way of DWARF 5
_ASSEMBLE = ("-c", "-Wa,-gdwarf-5", "-x", "assembler", "-")
_LINES_SHOWN = 2
_Pack = Callable[[Any, bool, str, str], str]


@contextmanager
def objects_in_memory(
    module: tvm.runtime.Module, fcompile: Callable[..., Any] | None = None, compiler: str | None = None
) -> Iterator[_Pack | None]:
    """Inside, LLVM's modules among the imports of ``module`` are exported from memory.

    Yields ``fpack_imports`` for TVM's ``export_library``; None for a system library, or where ``fcompile`` links other
    files.
    """
    found = module._collect_from_import_tree(lambda part: part.kind == _LLVM)
    other = hasattr(fcompile, "object_format") or not _native.available()
    if other or any(part.get_function("__tvm_is_system_module")() for part in found):
        yield None
        return
    target = str(found[0].get_function("_get_target_string")()) if found else json.dumps({"kind": _LLVM})

    def pack(packed: Any, is_system_library: bool, prefix: str, folder: str) -> str:
        made = tvm.get_global_func("runtime.ModulePackImportsToLLVM")(packed, is_system_library, target, prefix)
        path = os.path.join(folder, f"{prefix}devc.o")
        _in_memory(made, compiler).write_to_file(path)
        return path

    parents = module._collect_from_import_tree(lambda part: any(p.kind == _LLVM for p in part.imports))
    before = [(parent, list(parent.imports)) for parent in parents]
    try:
        for parent, imports in before:
            set_imports(parent, [_in_memory(p, compiler) if p.kind == _LLVM else p for p in imports])
        yield pack
    finally:
        for parent, imports in before:
            set_imports(parent, imports)


def _in_memory(module: tvm.runtime.Module, compiler: str | None) -> tvm.runtime.Module:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = _object(module) if limit == resource.RLIM_INFINITY else _assembled(module, compiler)
    return _native.function("tvm_byoc_dnnl.ObjectModuleCreate")(data, module, "", _LLVM)


def _object(module: tvm.runtime.Module) -> bytes:
    with os.fdopen(os.memfd_create("tvm_byoc_dnnl.o"), "rb") as file:
        module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def _assembled(module: tvm.runtime.Module, compiler: str | None) -> bytes:
    """The object file by way of the assembler, whose failures are errors."""
    with workspace() as folder:
        path = Path(folder, "code.o")
        command = [compiler or cc.get_cc() or "c++", *_ASSEMBLE, "-o", str(path)]
        text = module.inspect_source("asm").encode()
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        if done.returncode or not path.is_file():
            lines = done.stderr.decode(errors="replace").splitlines()
            said = "; ".join(lines[:_LINES_SHOWN]) or f"status {done.returncode}"
            raise ExportError(f"the code cannot be assembled: {said}; files may have a limit of size here (ulimit -f)")
        return path.read_bytes()
