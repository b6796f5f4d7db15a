"""Regions → PrimFuncs → C → an object inside a runtime module, by the host's C compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from ...vendor import (
    TEGraph,
    UnsupportedError,
    c_module,
    generate_c,
    get_target_options,
    object_module,
    schedule_te,
    translate_to_te,
)
from .schedule import schedule

_NAMES = ("cc", "gcc", "clang")
#: -O3 vectorises; neither of the others changes a result: errno is never read, and floating-point traps are not used
_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-w")
_LONGEST_MESSAGE = 2000


def find_compiler(wanted: str = "") -> list[str]:
    """The command of the C compiler: ``wanted``, else the environment's ``CC``, else the first of cc, gcc, clang.

    Raises
    ------
    UnsupportedError
        If there is none; the message lists the compilers that were tried.
    """
    given = wanted or os.environ.get("CC", "")
    for command in [shlex.split(given)] if given else [[name] for name in _NAMES]:
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    tried = repr(given) if given else ", ".join(_NAMES)
    raise UnsupportedError(
        f"no C compiler: tried {tried} on PATH; install gcc or clang, or name one in the environment variable CC or in "
        "the option cc"
    )


def compile_object(source: str, symbols: Sequence[str], flags: Sequence[str], compiler: str = "") -> tvm.runtime.Module:
    """Compile C source that TVM generated.

    Parameters
    ----------
    source : str
        The source.
    symbols : sequence of str
        The functions in it.
    flags : sequence of str
        Further arguments of the compiler, such as ``-O3``.
    compiler : str
        See `find_compiler`.

    Returns
    -------
    tvm.runtime.Module
        See `object_module`.

    Raises
    ------
    UnsupportedError
        If there is no compiler, or it reports an error.
    """
    include = (
        tvm.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_dlpack_include_path(),
    )
    command = [*find_compiler(compiler), *_FLAGS, *flags]
    with tempfile.TemporaryDirectory(prefix="byoc_cc_") as folder:
        code, made, linked = (Path(folder, f"kernels.{suffix}") for suffix in ("c", "o", "so"))
        code.write_text(source)
        _run([*command, *(f"-I{path}" for path in dict.fromkeys(include)), "-c", str(code), "-o", str(made)], folder)
        _run([*command, "-shared", str(made), "-o", str(linked), "-lm"], folder)
        return object_module(made, linked, symbols, source)


def _run(command: list[str], folder: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        message = run.stderr.replace(f"{folder}/", "").strip()[:_LONGEST_MESSAGE]
        command_line = shlex.join(command).replace(f"{folder}/", "")
        raise UnsupportedError(f"{command_line} failed with status {run.returncode}: {message}")


NAMESPACE = "ccompiler"
TARGET = "c"
#: option → default
OPTIONS = {
    "cc": "",  # the compiler's command; else the environment's CC, else the first of cc, gcc, clang
    "optimize": 3,  # -O
    "march": "",  # -march: the machine that the exported library needs; by default the compiler's baseline
    "source": False,  # leave C source in the module, for export_library(..., cc=...) to compile: a cross compiler
}


def lower_region(region: relax.Function, builder: relax.BlockBuilder) -> relax.Call:
    """One region as one kernel."""
    graph = translate_to_te((builder.get(), region), TARGET)
    return graph.call(builder, region.params, scheduled(graph))


def scheduled(graph: TEGraph) -> tirx.PrimFunc:
    """The kernel of a TE graph."""
    try:
        return schedule_te(graph, TARGET, schedule)
    except s_tir.ScheduleError:  # slower, and as right
        return graph.to_primfunc()


def compile_functions(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """Lowered PrimFuncs as object code (or as source, by option)."""
    options = get_target_options(mod, NAMESPACE)
    if options["source"]:
        return c_module(mod, target)
    flags = [f"-O{options['optimize']}"] + ([f"-march={options['march']}"] if options["march"] else [])
    symbols = [gv.name_hint for gv in mod.get_global_vars()]
    return compile_object(generate_c(mod, target), symbols, flags, options["cc"])
