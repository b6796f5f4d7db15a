"""The pass that sweeps the functions of a module with rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import OverwritableWeights, current
from ..core.ledger import with_facts
from .rewrite import Rules, Scope


def rewrite_pass(name: str, rules: Rules, *, tidy: bool = False, leaves_weights: bool = False) -> tvm.ir.transform.Pass:
    """A module pass that sweeps every Relax function once with ``rules``.

    With ``tidy``, aliases and what nothing reads are gone then, too. With ``leaves_weights``, the next such pass is the
    one that may overwrite weights.
    """
    tidying = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])

    def sweep(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        changed, misses = {}, []
        own = (None if leaves_weights else current().weights) or OverwritableWeights()
        for gv, func in module.functions_items():
            if isinstance(func, relax.Function) and not _is_backend_function(func):
                scope = Scope(module, rules, own)
                if (new := scope.function(func)) is not func:
                    changed[gv] = new
                misses += scope.misses(gv.name_hint)
        own.constants.clear()  # the others may be freed from now on
        module = _with_changed(with_facts(module, misses), changed)
        return tidying(module) if tidy else module

    return tvm.transform.module_pass(sweep, opt_level=0, name=name)


def _with_changed(module: tvm.IRModule, changed: Mapping[Any, relax.Function]) -> tvm.IRModule:
    """The module with these functions, without PrimFuncs that the rules turned into operators."""
    if not changed:
        return module
    functions = {gv: changed.get(gv, func) for gv, func in module.functions_items()}
    swept = tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
    if len(functions) == 1:  # none that could be unused
        return swept
    unused = _called(module) - _called(swept)
    kept = {gv: f for gv, f in functions.items() if gv not in unused or "global_symbol" in (f.attrs or {})}
    return tvm.IRModule(kept, attrs=module.attrs, global_infos=module.global_infos)


def _is_backend_function(func: relax.Function) -> bool:
    """Whether a backend owns the function already."""
    return bool(func.attrs) and any(k in func.attrs for k in ("Codegen", "Composite", "Primitive"))


def _called(module: tvm.IRModule) -> set[Any]:
    """Functions that the module's Relax functions refer to."""
    functions = (func for _, func in module.functions_items() if isinstance(func, relax.Function))
    return {gv for func in functions for gv in relax.analysis.all_global_vars(func)}
