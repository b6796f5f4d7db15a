"""The codegens, guarded: a region whose code cannot be generated goes back, and the build goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import tvm
from tvm import relax

from ..errors import NativeLibraryError
from ..log import raise_failures, read_log
from ..partitioning.attempt import Failure, check_sources, generate_code
from ..partitioning.fallback import dataflow_blocks
from ..partitioning.inliner import Body, inline_calls
from ..partitioning.passes import partition_module
from ..partitioning.policy import RegionPolicy
from ..registry import Namespace, compilers, namespace
from ..relax_utils import Twins, codegen_of, with_functions
from ..target_options import get_target_options
from .extern import install_codegen

__all__ = ["RunCodegens", "dissolve_regions"]


def RunCodegens(*, strict: bool = False) -> tvm.transform.Pass:
    """Pass: TVM's RunCodegen for every region, with fall-back.

    When it fails, each region's codegen is run by itself, and those that fail are partitioned again around the calls
    that are to blame.

    Parameters
    ----------
    strict : bool
        Raise instead.

    Raises
    ------
    UnsupportedError
        When the pass runs, with ``strict``: lists every call that failed, with the reason.
    NativeLibraryError
        When the pass runs, if a library is missing: that is no fault of a region.
    """

    @tvm.transform.module_pass(opt_level=0, name="RunCodegens")
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        for compiler in sorted(_owners(mod)):
            if compiler in compilers():
                install_codegen(namespace(compiler))
        while True:
            try:
                options = {name: get_target_options(mod, name) for name in _owners(mod) if name in compilers()}
                built = relax.transform.RunCodegen(options)(mod)
                check_sources(list(built.attrs["external_mods"]) if "external_mods" in (built.attrs or {}) else [])
                return built
            except NativeLibraryError:
                raise
            except Exception as error:
                mod = _without_failures(mod, error)
                if strict:
                    raise_failures(read_log(mod))

    return run


def _owners(mod: tvm.IRModule) -> set[str]:
    return {codegen_of(f) for f in mod.functions.values()} - {""}


def _without_failures(mod: tvm.IRModule, error: Exception) -> tvm.IRModule:
    """The module without regions, or parts of regions, whose code cannot be generated."""
    regions = {gv: f for gv, f in mod.functions.items() if codegen_of(f) and isinstance(f, relax.Function)}
    spaces = {name: namespace(name) if name in compilers() else Namespace(name) for name in _owners(mod)}
    options = {name: get_target_options(mod, name) if name in compilers() else {} for name in spaces}
    failing = [gv for gv, f in regions.items() if generate_code(spaces[codegen_of(f)], [f], options[codegen_of(f)])]
    lost: dict[str, Failure] = {}
    if not failing:  # each works by itself: give up the compilers that cannot do all of theirs at once
        for name, ns in spaces.items():
            own = [f for f in regions.values() if codegen_of(f) == name]
            failure = generate_code(ns, own, options[name])
            if failure is not None:
                lost[name] = Failure(failure.stage, f"all regions of the module together: {failure.reason}")
        failing = [gv for gv, f in regions.items() if codegen_of(f) in lost]
    if not failing:
        raise error

    def attempt(ns: Namespace, func: relax.Function) -> Failure | None:
        return lost.get(ns.name) or generate_code(ns, [func], options.get(ns.name, {}))

    return partition_module(dissolve_regions(mod, failing), attempt, RegionPolicy())


def dissolve_regions(mod: tvm.IRModule, regions: Sequence[Any]) -> tvm.IRModule:
    """Undo the partitioning of some regions: the functions that called them call their composites instead."""
    lifted: dict[Any, Any] = {}
    taken = {gv.name_hint for gv in mod.get_global_vars()}
    seen = Twins()

    def lift(composite: relax.Function) -> Any:
        new = tvm.ir.GlobalVar(next(n for k in count() if (n := f"composite_{k}") not in taken))
        gv = seen.first(composite, new)
        if gv is new:
            taken.add(gv.name_hint)
            relax.expr._update_type(gv, composite.ty)
            lifted[gv] = composite
        return gv

    calls: dict[Any, dict[Any, Body]] = {}
    for host, block in dataflow_blocks(mod):
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and binding.value.op in regions:
                calls.setdefault(host, {})[binding.var] = Body(mod[binding.value.op])
    hosts = {host: inline_calls(mod[host], bodies, lift) for host, bodies in calls.items()}
    kept = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    mod = tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
    return with_functions(mod, {**lifted, **_tidied(hosts)})


def _tidied(functions: Mapping[Any, relax.Function]) -> dict[Any, relax.Function]:
    """Functions without the tuples in which regions returned their results."""
    names = [gv.name_hint for gv in functions]
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(names)]
    tidy = tvm.transform.Sequential(passes)(tvm.IRModule(functions))
    return {gv: tidy[gv.name_hint] for gv in functions}
