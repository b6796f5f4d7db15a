"""Object files of LLVM's modules, made in memory and then written by this package.

Where LLVM cannot write a file to its end, because the disk is full or files may not grow that large, it ends the
process. So it writes to memory, and where even files in memory have a limit, it returns assembly as text.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from ..core import _native
from ..core.errors import ExportError
from ..core.files import workspace
from .host_code import set_imports

_LLVM = "llvm"
#: LLVM names source files in the way of DWARF 5
_ASSEMBLE = ("-c", "-Wa,-gdwarf-5", "-x", "assembler", "-")
_LINES_SHOWN = 2
_Pack = Callable[[Any, bool, str, str], str]


@contextmanager
def objects_in_memory(
    module: tvm.runtime.Module, fcompile: Callable[..., Any] | None = None, compiler: str | None = None
) -> Iterator[_Pack | None]:
    """Inside, LLVM's modules among the imports are exported from memory.

    For a system library, and where files of another kind are linked, nothing changes.

    Parameters
    ----------
    module : tvm.runtime.Module
        What is to be exported.
    fcompile : callable, optional
        What links the files, in place of TVM's own.
    compiler : str, optional
        The C++ compiler that links it.

    Yields
    ------
    callable or None
        For ``fpack_imports`` of TVM's ``export_library``: writes the file with what the module imports.
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
    """A module of LLVM's as one that has its object file in memory."""
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
