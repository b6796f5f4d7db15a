"""AnnotateExternalCompiler: patterns and predicates → Composite functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.utils import has_leaking_intermediate_variables
from tvm.relax.dpl import is_op, wildcard

from .prepare import Prepare
from .registry import Namespace, Pattern, namespace
from .relax_utils import codegen_of, composite_of, is_host_function, ops_of
from .trial import ask, trial_lowering
from .verdict import Reject, as_reject

__all__ = ["COMPILER_ATTR", "AnnotateExternalCompiler", "compilers_of"]

#: function attribute that names the compiler(s) of a function
COMPILER_ATTR = "compiler"


def compilers_of(func: relax.Function, default: Sequence[str] | None) -> list[str]:
    """Compilers for one function, in order of priority: ``default``, else its attribute ``compiler``."""
    if default is not None:
        return list(default)
    value = func.attrs[COMPILER_ATTR] if func.attrs and COMPILER_ATTR in func.attrs else []
    return [str(value)] if isinstance(value, str) else [str(v) for v in value]


def _fusion_patterns(compilers: Sequence[str], ops: set[str]) -> list[tuple[Any, ...]]:
    """Entries for FuseOpsByPattern: compilers in order, each with its patterns before its single ops."""
    entries: list[tuple[Any, ...]] = []
    for ns in map(namespace, compilers):
        for pattern in ns.patterns.values():
            name = f"{ns.name}.{pattern.name}"
            entries.append((name, pattern.pattern, dict(pattern.annotations), _pattern_checker(ns, pattern)))
        entries += [
            (f"{ns.name}.{op}", _single_call(op), {}, _call_checker(ns))
            for op in ns.ops()
            if op in ops
        ]
    return entries


def _single_call(op: str) -> Any:
    if op in ("relax.multiply", "relax.divide"):
        # TVM also tries a*b/c as a*(b/c) for these two, and then reads arguments that a pattern without any lacks.
        return is_op(op)(wildcard(), wildcard())
    return is_op(op)(varg_default_wildcard=True)


def _call_checker(ns: Namespace) -> Any:
    return lambda context: ask(ns, context.matched_expr) is None


def _pattern_checker(ns: Namespace, pattern: Pattern) -> Any:
    def check(context: Any) -> bool:
        if has_leaking_intermediate_variables(context):
            return False
        match = {str(name): expr for name, expr in context.annotated_expr.items()}
        return ask_pattern(ns, pattern, {**match, "root": context.matched_expr}) is None

    return check


def ask_pattern(ns: Namespace, pattern: Pattern, match: dict[str, Any]) -> Reject | None:
    """The verdict of a namespace on one match of a pattern."""
    who = f"the check of pattern {ns.name}.{pattern.name}"
    try:
        if pattern.check is not None:
            refusal = as_reject(pattern.check(match), who)
            if refusal is not None:
                return refusal
    except Reject as refusal:
        return refusal
    except Exception as error:
        return Reject(f"{who} failed: {type(error).__name__}: {error}")
    lower = pattern.lower
    if lower is None:
        return None
    return trial_lowering(ns, pattern.name, [pattern.name], lambda g: lower(g, match))


def AnnotateExternalCompiler(
    compiler: str | Sequence[str] | None = None, *, prepare: bool = True
) -> tvm.transform.Pass:
    """Pass: put every call that an external compiler takes into a composite function of that compiler.

    Each registered pattern and each single operator is tried in order of priority; what nobody takes stays as it is.
    Functions that belong to a compiler already are left alone.

    Parameters
    ----------
    compiler : str or sequence of str, optional
        Namespace, or several in order of priority. Without it each function's attribute ``compiler`` (a string or an
        array of strings) decides, and functions without that attribute stay with TVM.
    prepare : bool
        Run the common preparing passes and those of the namespaces first (`tvm_byoc_dnnl.prepare`).

    Returns
    -------
    tvm.transform.Pass

    Raises
    ------
    ValueError
        When the pass runs, if a compiler is not registered.
    """
    default = None if compiler is None else [compiler] if isinstance(compiler, str) else list(compiler)
    for name in default or ():
        namespace(name)  # an unknown name fails where it is written, not later

    @tvm.transform.module_pass(opt_level=0, name="AnnotateExternalCompiler")
    def annotate(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        owned = {gv: f for gv, f in mod.functions.items() if codegen_of(f) or composite_of(f)}
        if prepare:
            wanted = {c for f in mod.functions.values() if is_host_function(f) for c in compilers_of(f, default)}
            mod = Prepare()(mod)
            for name in sorted(wanted):
                for make_pass in namespace(name).prepare:
                    mod = make_pass()(mod)
        mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
        for compilers, functions in _by_compilers(mod, default).items():
            ops = {op for f in functions for op in ops_of(mod[f])}
            patterns = _fusion_patterns(compilers, ops)
            if patterns:
                mod = relax.transform.FuseOpsByPattern(patterns, bind_constants=True, entry_functions=functions)(mod)
        for gv, func in owned.items():  # the passes above rewrite every function
            mod.update_func(gv, func)
        return mod

    return annotate


def _by_compilers(mod: tvm.IRModule, default: Sequence[str] | None) -> dict[tuple[str, ...], list[str]]:
    """Names of the host functions, grouped by the compilers that may take their calls."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gv, func in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
        if is_host_function(func) and (compilers := compilers_of(func, default)):
            groups.setdefault(tuple(compilers), []).append(gv.name_hint)
    return groups
