"""PrimFuncs of one namespace → a runtime module of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from ...core.errors import UnsupportedError
from ...core.own_process import apart
from ...core.vendor_code import calling, run_pass
from ..namespace import TargetHooks
from ..routes.source import check_sources, missing_functions
from ..target_options import OPTIONS_ATTR
from .c_source import c_module, lower_tir


def hook_target(hooks: TargetHooks | None, target: tvm.target.Target) -> tvm.target.Target:
    """The target of the PrimFuncs of a namespace: its own target, or that of the build."""
    own = tvm.target.Target(hooks.target) if hooks is not None and hooks.target is not None else target
    if own.host is not None:
        return own
    return own.with_host(own if "cpu" in own.keys else target)


def build_apart(
    hooks: TargetHooks | None,
    functions: Mapping[str, tirx.PrimFunc],
    target: tvm.target.Target,
    options: Any,
    *,
    isolate: bool = False,
) -> tvm.runtime.Module:
    """Run the TIR passes and ``tir_to_runtime`` of a namespace.

    Parameters
    ----------
    hooks : TargetHooks, optional
        The namespace's hooks; without them TVM's own passes and code generator run.
    functions : mapping of str to PrimFunc
        Symbol → function.
    target : Target
        See `hook_target`.
    options : mapping
        What `get_target_options` reads: namespace → option → value.
    isolate : bool
        Run the passes and ``tir_to_runtime`` in a process of their own.

    Raises
    ------
    UnsupportedError
        If the result is not a module that can be run and exported, or lacks a function.
    RuntimeError
        If it is C that does not compile.
    """
    mod = tvm.IRModule({s: f.with_attr("global_symbol", s) for s, f in functions.items()})
    mod = mod.with_attr(OPTIONS_ATTR, options)
    if isolate:
        with calling("tir_passes or tir_to_runtime"):
            library = apart(lambda: _built(hooks, mod, target), "tir_passes or tir_to_runtime")
    else:
        library = _built(hooks, mod, target)
    _check(library)
    check_sources([library])
    missing = missing_functions(library, functions)
    if missing:
        raise UnsupportedError(f"the module that tir_to_runtime returned has no function {', '.join(missing)}")
    return library


def _built(hooks: TargetHooks | None, mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    passes = hooks.tir_passes if hooks is not None else None
    to_runtime = hooks.tir_to_runtime if hooks is not None else None
    with target:
        mod = tirx.transform.BindTarget(target)(mod)
        mod = run_pass(passes, mod, "tir_passes") if passes is not None else lower_tir(mod, target)
        with calling("tir_to_runtime"):
            return to_runtime(mod, target) if to_runtime is not None else _generate(mod, target)


def _generate(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    kind = str(target.kind.name)
    if kind == "c":
        return c_module(mod, target)
    generator = tvm.get_global_func(f"target.build.{kind}", allow_missing=True)
    if generator is None:
        raise UnsupportedError(f"this TVM has no code generator for target {kind!r}; register a tir_to_runtime hook")
    return generator(mod, target)


def _check(library: Any) -> None:
    if not isinstance(library, tvm.runtime.Module):
        raise UnsupportedError(f"tir_to_runtime returned {library!r}; expected a runtime Module")
    exportable = library.is_binary_serializable() or library.is_compilation_exportable()
    if not exportable or library.kind == "library":  # a shared library that is loaded only claims to be
        raise UnsupportedError(
            f"tir_to_runtime returned a module of kind {library.kind!r} that cannot be exported; expected one that is "
            "serializable, or source or an object to be linked"
        )
