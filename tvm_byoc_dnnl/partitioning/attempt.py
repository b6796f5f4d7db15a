"""Attempts: can a compiler really make something of a region? The answer is nothing, or what broke and where."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.support import cc

from .._compat import is_constant
from ..codegen.extern import PortableCodegen
from ..emit.source import SourceBuild
from ..errors import NativeLibraryError
from ..lower.region import lower_region
from ..registry import Namespace
from ..verdict import Reject

__all__ = ["Failure", "check_sources", "describe", "generate_code", "make_region", "source_builds"]

_LONGEST_REASON = 600


@dataclass(frozen=True)
class Failure:
    """What broke: ``lower``, ``plan`` or ``codegen``, and why."""

    stage: str
    reason: str


def describe(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, Reject) else f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def make_region(ns: Namespace, func: relax.Function, options: Mapping[str, Any]) -> Failure | None:
    """Take a fresh region as far as is cheap: lower and plan it, or run its codegen where there is no other way.

    Parameters
    ----------
    ns : Namespace
        Who takes it.
    func : relax.Function
        The region.
    options : mapping
        The options of the namespace, defaults filled in.
    """
    if ns.hooks is not None or ns.fused_ops:
        from ..hooks.lowering import attempt_hooks  # which stands above this module

        result = attempt_hooks(ns, func, options)
        if result is not None:
            return result if isinstance(result, Failure) else None
    if not isinstance(ns.codegen, PortableCodegen):
        return generate_code(ns, [func], options) if ns.codegen is not None else None
    stage = "lower"
    try:
        graph = lower_region(ns, func, "trial")
        stage = "plan"
        refusal = ns.probe(graph) if ns.probe is not None else None
    except NativeLibraryError:
        raise  # nothing that another compiler could do better
    except Exception as error:
        return Failure(stage, describe(error))
    return None if refusal is None else Failure(stage, refusal.reason)


def generate_code(ns: Namespace, functions: Sequence[relax.Function], options: Mapping[str, Any]) -> Failure | None:
    """Run a namespace's codegen as ``RunCodegen`` would, with made-up names, and throw the result away."""
    codegen = ns.codegen or tvm.get_global_func(f"relax.ext.{ns.name}", allow_missing=True)
    if codegen is None:
        return Failure("codegen", f"{ns.name!r} has registered no codegen")
    named = [f.with_attr({"Codegen": ns.name, "global_symbol": f"trial_{i}"}) for i, f in enumerate(functions)]
    constants: dict[Any, str] = {}

    def name_constant(expr: Any) -> None:
        if is_constant(expr):
            constants.setdefault(expr, f"trial_const_{len(constants)}")

    for func in named:
        relax.analysis.post_order_visit(func, name_constant)
    try:
        made = list(codegen(tvm_ffi.convert(named), tvm_ffi.convert(dict(options)), tvm_ffi.convert(constants)))
        if len(made) != len(named) or not all(isinstance(m, tvm.runtime.Module) for m in made):
            return Failure("codegen", f"the codegen returned {made}; expected {len(named)} runtime module(s)")
        check_sources(made, source_builds([ns]))
    except NativeLibraryError:
        raise
    except Exception as error:
        return Failure("codegen", describe(error))
    return None


def source_builds(spaces: Iterable[Namespace]) -> list[SourceBuild]:
    """What the source modules of these namespaces are compiled and linked with."""
    codegens = [ns.codegen for ns in spaces if isinstance(ns.codegen, PortableCodegen)]
    return [c.source_build() for c in codegens if c.source_build is not None]


def check_sources(modules: Sequence[tvm.runtime.Module], builds: Sequence[SourceBuild] = ()) -> None:
    """Let the C++ compiler read every module that is C or C++ source, with the include paths of ``export_library``.

    Parameters
    ----------
    modules : sequence of Module
        Those of other kinds are passed over.
    builds : sequence of SourceBuild
        What they are compiled with besides.

    Raises
    ------
    RuntimeError
        With the compiler's first messages, or if there is no compiler to export such a module with.
    """
    sources = [m.inspect_source() for m in modules if m.kind == "c"]
    if not sources:
        return
    compiler = cc.get_cc()
    if not compiler:
        raise RuntimeError("the codegen made C source and there is no C++ compiler; install g++ or clang++")
    options = [option for build in [*builds, SourceBuild()] for option in build.compile_options]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, source in enumerate(sources):
            files.append(Path(folder, f"source_{number}.cc"))
            files[-1].write_text(source)
        command = [compiler, "-fsyntax-only", "-w", *dict.fromkeys(options), *map(str, files)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{Path(compiler).name}: {result.stderr.replace(folder + '/', '')}")
