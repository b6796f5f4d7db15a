"""Attempts: can a compiler really make something of a region? The answer is nothing, or what broke and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from .._compat import is_constant
from ..codegen.extern import PortableCodegen, source_builds
from ..codegen.region import lower_region
from ..codegen.source import check_sources
from ..errors import NativeLibraryError
from ..hooks.lowering import attempt_hooks
from ..namespace import Namespace
from ..regions.failure import Failure, describe

__all__ = ["generate_code", "make_region"]


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
